"""What PBS remembers of a job that is over: who deleted it, and the memory that it took."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.queries import QueryError
from launcher.units import parse_size


def history(pbs: PBS, job_id: str) -> list[JobExecution]:
    """The job's only record, with the memory of all its nodes together; none where PBS has forgotten it."""
    try:
        record = pbs.record(job_id)
    except QueryError:
        return []
    return [] if record is None else [parse(record)]


def parse(record: Mapping[str, Any]) -> JobExecution:
    """A job's record. Pure."""
    by = re.search(r"terminated by (\S+?)@", str(record.get("comment", "")))
    used = record.get("resources_used")
    text = str(used.get("mem", "")) if isinstance(used, dict) else ""
    size = parse_size(text) if re.fullmatch(r"[1-9]\d*[kmgt]?b", text) else None
    return JobExecution("", by[1] if by else "", used=size)
