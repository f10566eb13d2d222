"""Results of checks, such as those of `doctor`: a level, the subject, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from launcher.structs import Struct


class Level(str, Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct):
    level: Level  # how bad it is
    about: str  # the subject in a word, such as `torch`
    says: str  # what was found
    do: str = ""  # what the user should do; empty: nothing


def ok(about: str, says: str) -> Finding:
    return Finding(Level.OK, about, says)


def warning(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.WARNING, about, says, do)


def problem(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.PROBLEM, about, says, do)


def worst(findings: Iterable[Finding]) -> Level:
    """Returns the worst level among the findings; OK if there are none."""
    levels = {each.level for each in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
