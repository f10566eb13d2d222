"""Reads all executions of a job, with their peak memory, from Grid Engine's accounting."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.queries import QueryError
from launcher.schedulers.sge.commands import SGE, array_of, deleter, outcome, records, size


def history(sge: SGE, job_id: str) -> list[JobExecution]:
    """Returns all executions of a job, oldest first; [] if the site has no accounting."""
    try:
        return of_records(records(sge.accounting("-j", array_of(job_id))).get(job_id, []))
    except QueryError:
        return []


def of_records(times: Sequence[Mapping[str, str]]) -> list[JobExecution]:
    """Converts the accounting records of one job to executions."""
    return [
        JobExecution(
            outcome(each), deleter(each), _moment(each.get("start_time", "")),
            _moment(each.get("end_time", "")), size(each.get("maxvmem", "")) or None,
        )
        for each in times
    ]  # fmt: skip


def _moment(text: str) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:  # -/- for a job that did not run; Univa Grid Engine prints another format
        return ""
