"""Errors with a text for the user, and the exit codes of commands and attempts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

DONE = 0
FAILED = 1  # the run failed, or a command could not do what it was asked
BAD_INPUT = 2  # nothing was submitted, nothing was left behind
DECLINED = 3  # the user declined a submission (`confirm_above`), of which nothing is left
RESUME = 75  # the attempt stopped early and can be resumed
NO_RETRY = 93  # the attempt failed, and a retry would fail too
INTERRUPTED = 130  # from the keyboard
UNAVAILABLE = "unavailable"  # code of a stop reason: a file that the attempt needs could not be read


class LauncherError(Exception):
    """An error that the user can fix; its text names what is wrong, where it was set, and what to do."""

    exit_code = FAILED
    code = ""  # the kind of error, for programs


class ConfigError(LauncherError):
    """A value in the configuration cannot be used. Nothing was submitted. key: the one whose value it is, if one is."""

    exit_code = BAD_INPUT

    def __init__(self, text: str = "", *, key: str = "") -> None:
        super().__init__(text)
        self.key = key


class SubmissionError(LauncherError):
    """The scheduler did not take the job."""


class RunError(LauncherError):
    """A run directory is missing, damaged, or not safe to use."""


class NoRunError(RunError):
    """What the user named is no run or sweep, or fits several."""

    exit_code = BAD_INPUT


class UnavailableError(RunError, OSError):
    """A file that the run's machines share cannot be read now. Whether it exists, and what it holds, is unknown.

    Where callers cannot retry, an attempt exits with RESUME. It is an OSError too, for callers which ignore every one.
    """

    code = UNAVAILABLE


def near(word: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean a or b?` with the entries of `known` that are most similar to `word`; empty: none is."""
    from difflib import get_close_matches

    low = word.lstrip("-").lower()
    names = {each.lstrip("-").lower(): each for each in known}
    matches = (
        [names[low]] if low in names
        else [names[each] for each in get_close_matches(low, names, n=3, cutoff=0.6)]
        or [names[each] for each in names if each.startswith((f"{low}_", f"{low}-"))][:3]
        or [names[each] for each in names if each.endswith(f".{low}")][:3]
    )  # fmt: skip
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def program() -> str:
    """Returns `launcher` or `python -m launcher`, whichever the user has called, for commands shown in hints."""
    name = os.path.basename(sys.argv[0])
    return name if name == "launcher" else "python -m launcher"
