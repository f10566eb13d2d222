"""What accounting remembers of a job: each time that it ran."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge.commands import LIMIT, RESCHEDULED, SGE, array_of, records


def history(sge: SGE, job_id: str) -> list[JobExecution]:
    """All times that a job ran, oldest first; none where there is no accounting."""
    try:
        return of_records(records(sge.accounting("-j", array_of(job_id))).get(job_id, []))
    except QueryError:
        return []


def of_records(times: Sequence[Mapping[str, str]]) -> list[JobExecution]:
    """The records of one job. Pure."""
    return [
        JobExecution(
            word(each), _deleter(each), _moment(each.get("start_time", "")), _moment(each.get("end_time", "")),
            _size(each.get("maxvmem", "")),
        )
        for each in times
    ]  # fmt: skip


def word(record: Mapping[str, str]) -> str:
    """How one time ended, in Slurm's words: post-mortem knows them. Pure."""
    failed = record.get("failed", "").split(" ")[0]
    if failed == LIMIT:
        return "TIMEOUT"
    if failed == RESCHEDULED:
        return "REQUEUED"
    if _deleter(record):
        return "CANCELLED"
    return "COMPLETED" if failed == "0" and record.get("exit_status", "").split(" ")[0] == "0" else "FAILED"


def _deleter(record: Mapping[str, str]) -> str:
    """Who deleted it, where Grid Engine tells that (Univa's and Altair's)."""
    by = record.get("deleted_by", "NONE").partition("@")[0]
    return "" if by == "NONE" else by


def _moment(text: str) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:  # -/- of a job that did not run; Univa's has another form
        return ""


def _size(text: str) -> int | None:
    match = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text)
    return (round(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) or None) if match else None
