"""Finds the notices that a scheduler or the kernel writes into the output of a job that it kills.

Notices exist even where a site has no accounting or job history. The kernel's pattern is here; each scheduler's
patterns are in its notices.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.units import parse_local_time, parse_size

# A Slurm job state, and the pattern of the lines that indicate it; its optional group `at` is the time.
Form = tuple[str, re.Pattern[str]]
KERNEL: Form = ("OUT_OF_MEMORY", re.compile(r"[Mm]emory cgroup out of memory|Out of memory: Killed process"))
_AMOUNTS = re.compile(r"(\d+)\s*([kmg]?)b?\)?\s*(?:>|exceeded limit|over)\s*(\d+)\s*([kmg]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class Notice:
    """One notice in a job's output."""

    state: str  # job state that the notice indicates, one of Slurm's for all schedulers
    line: str  # text of the notice
    used: int | None = None  # used memory in bytes; None if not in the text
    limit: int | None = None  # memory limit in bytes; None if not in the text
    time: float | None = None  # time in the notice, in seconds since the epoch; None if not in the text


def find(lines: Iterable[str], forms: Iterable[Form] = ()) -> tuple[Notice, ...]:
    """Returns the notices among the lines of a job's output, in order.

    Args:
        lines: lines of the output.
        forms: patterns of the schedulers that may have written notices; the first that matches a line applies.
    """
    known = [*forms, KERNEL]
    first = (next(((word, match) for word, form in known if (match := form.search(line))), None) for line in lines)
    return tuple(_notice(*each) for each in first if each is not None)


def _notice(word: str, match: re.Match[str]) -> Notice:
    line = match.string
    amounts = _AMOUNTS.search(line) if word == "OUT_OF_MEMORY" else None
    when = parse_local_time(match.groupdict().get("at") or "")
    if not (amounts and int(amounts[1]) and int(amounts[3])):
        return Notice(word, line.strip(), time=when)
    used, limit = parse_size(amounts[1] + amounts[2]), parse_size(amounts[3] + amounts[4])
    return Notice(word, line.strip(), used, limit, when)


def main_state(notices: Iterable[Notice]) -> str:
    """Returns the most specific state among the notices; empty: there are none."""
    words = [notice.state for notice in notices]
    order = ("OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "REQUEUED", "CANCELLED")
    return next((word for word in order if word in words), "")
