"""Counts what a function does, so that a test sees how its work grows without a clock."""

from __future__ import annotations

import cProfile
from collections.abc import Callable


def operations(function: Callable[[], object]) -> int:
    """Returns how many functions, of Python and of C, are called within a call of `function`."""
    counter = cProfile.Profile()  # a hook in Python (sys.setprofile) takes ten times as long as what it counts
    counter.runcall(function)
    return sum(entry.callcount for entry in counter.getstats())  # type: ignore[attr-defined]


class Counted(int):
    """A number that counts comparisons with it, which a search in a list makes, in `Counted.compared`."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other
