"""Results of checks: a level, the subject, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of a report: how bad it is, its subject, what was found, and what to do."""

    level: Level
    about: str
    says: str
    do: str = ""


def ok(about: str, says: str) -> Finding:
    return Finding(Level.OK, about, says)


def warning(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.WARNING, about, says, do)


def problem(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.PROBLEM, about, says, do)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of all; ok without any. Pure."""
    levels = {each.level for each in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
