"""Reads from PBS's job history who deleted a job, and the memory that it used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.queries import QueryError
from launcher.units import parse_size


def history(pbs: PBS, job_id: str) -> list[JobExecution]:
    """Returns the last execution of a job, with the memory of all its nodes together; [] without a record."""
    try:
        record = pbs.record(job_id)
    except QueryError:
        return []
    return [] if record is None else [parse(record)]


def parse(record: Mapping[str, Any]) -> JobExecution:
    """Parses the record of a job: the user who deleted it, and its memory."""
    by = re.search(r"terminated by (\S+?)@", str(record.get("comment", "")))
    used = record.get("resources_used")
    text = str(used.get("mem", "")) if isinstance(used, dict) else ""
    size = parse_size(text) if re.fullmatch(r"[1-9]\d*[kmgt]?b", text) else None
    return JobExecution("", by[1] if by else "", used=size)
