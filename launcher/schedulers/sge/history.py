"""The executions of a job, from its accounting records."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge.commands import LIMIT, RESCHEDULED, SGE, array_of, records


def history(sge: SGE, job_id: str) -> list[JobExecution]:
    """Returns all executions of a job, oldest first; none where there is no accounting."""
    try:
        return of_records(records(sge.accounting("-j", array_of(job_id))).get(job_id, []))
    except QueryError:
        return []


def of_records(times: Sequence[Mapping[str, str]]) -> list[JobExecution]:
    """Converts the accounting records of one job. Pure."""
    return [
        JobExecution(
            state_of_record(each), _deleter(each), _moment(each.get("start_time", "")),
            _moment(each.get("end_time", "")), _size(each.get("maxvmem", "")),
        )
        for each in times
    ]  # fmt: skip


def state_of_record(record: Mapping[str, str]) -> str:
    """Returns the outcome of one execution as a state of Slurm, which post-mortem knows. Pure."""
    failed = record.get("failed", "").split(" ")[0]
    if failed == LIMIT:
        return "TIMEOUT"
    if failed == RESCHEDULED:
        return "REQUEUED"
    if _deleter(record):
        return "CANCELLED"
    return "COMPLETED" if failed == "0" and record.get("exit_status", "").split(" ")[0] == "0" else "FAILED"


def _deleter(record: Mapping[str, str]) -> str:
    """Returns the user who deleted the job; empty: nobody, or not recorded (only Univa's and Altair's do)."""
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
