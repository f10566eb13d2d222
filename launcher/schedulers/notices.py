"""What is written into the output of a job that is ended. Pure.

It stays when accounting is off and history is forgotten. The kernel's words are here, and each scheduler's are in its
own notices.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.units import parse_local_time, parse_size

# The state, in Slurm's words, and a pattern of the lines that stand for it, in which `at` is the time.
Form = tuple[str, re.Pattern[str]]
KERNEL: Form = ("OUT_OF_MEMORY", re.compile(r"[Mm]emory cgroup out of memory|Out of memory: Killed process"))
_AMOUNTS = re.compile(r"(\d+)\s*([kmg]?)b?\)?\s*(?:>|exceeded limit|over)\s*(\d+)\s*([kmg]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class Notice:
    """One such line.

    Attributes:
        word: the state of the job, in Slurm's words.
        line: itself.
        used, limit: bytes, where it tells them.
        time: when it was written, in seconds since the epoch; None: it does not tell.
    """

    state: str
    line: str
    used: int | None = None
    limit: int | None = None
    time: float | None = None


def find(lines: Iterable[str], forms: Iterable[Form] = ()) -> tuple[Notice, ...]:
    """The notices among the lines of an output, in their order.

    Args:
        lines: the output.
        forms: those of the schedulers that may have written into it; the first that fits a line counts.
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
    """What they say of the job, in one word: the most special one, else the first; empty: nothing."""
    words = [notice.state for notice in notices]
    order = ("OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "REQUEUED", "CANCELLED")
    return next((word for word in order if word in words), "")
