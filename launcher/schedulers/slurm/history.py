"""Reads all executions of a job, with their peak memory, from Slurm's accounting."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.schedulers.diagnosis import JobExecution
from launcher.schedulers.queries import QueryError
from launcher.schedulers.slurm.commands import Slurm
from launcher.units import parse_size

_FIELDS = "JobID,State,Start,End,MaxRSS"


def history(slurm: Slurm, job_id: str) -> list[JobExecution]:
    """Returns all executions of a job, oldest first; [] if the site has no accounting.

    The memory of an execution is the peak of its largest task (MaxRSS) in any step.
    """
    try:
        text = slurm.sacct("--duplicates", "--jobs", job_id, f"--format={_FIELDS}")
    except QueryError:
        return []
    return parse(text)


def parse(text: str) -> list[JobExecution]:
    """Parses sacct's output: one line for each execution of the job, followed by one line for each of its steps."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == _FIELDS.count(",")]
    groups: list[tuple[Sequence[str], list[int]]] = []
    for fields in lines:
        if "." not in fields[0]:
            groups.append((fields, []))
        elif groups and (used := _size(fields[4])):
            groups[-1][1].append(used)
    found = []
    for (_, state, begin, end, _), sizes in groups:
        words = state.split()  # CANCELLED by 1000
        by = words[2] if words[1:2] == ["by"] and len(words) > 2 else ""
        found.append(JobExecution(words[0] if words else "", by, begin, end, max(sizes, default=None)))
    return found


def _size(text: str) -> int | None:
    return parse_size(text) if re.fullmatch(r"[\d.]*[1-9][\d.]*[KMGTP]?", text) else None
