"""The errors that a user meets, and the exit codes of every command and of every attempt.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the run failed (or a command could not do what it was asked) |
| 2 | bad input: nothing was submitted, nothing was left behind |
| 3 | asked whether to submit (`confirm_above`), you did not say yes: the same |
| 75 | the attempt stopped early and can be resumed |
| 93 | the attempt failed in a way that a retry cannot cure |
| 130 | interrupted from the keyboard |
"""

from __future__ import annotations

from collections.abc import Iterable

DONE = 0
FAILED = 1
BAD_INPUT = 2
DECLINED = 3
RESUME = 75
NO_RETRY = 93
INTERRUPTED = 130


UNAVAILABLE = "unavailable"  # code of a stop: what the attempt needed could not be read


class LauncherError(Exception):
    """Something a user can mend; its text says what was wrong, where it was set, and what to do."""

    exit_code = FAILED
    code = ""  # what kind it is, for programs


class ConfigError(LauncherError):
    """A value in the configuration cannot be used. Nothing was submitted."""

    exit_code = BAD_INPUT


class SubmissionError(LauncherError):
    """The scheduler did not take the job."""


class RunError(LauncherError):
    """A run directory is missing, damaged, or not safe to use."""


class UnavailableError(RunError, OSError):
    """What the machines of a run share cannot be read now, so nothing follows from it: neither that it is there, nor
    that it is not. Whoever can wait does; an attempt of a run ends with RESUME, and a command says so.

    It is an OSError too, for whoever passes over those (a fence of a checkpoint: there is a next save).
    """

    code = UNAVAILABLE


def near(word: str, known: Iterable[str]) -> str:
    """` Did you mean a or b?` for a misspelt `word`, or an empty string."""
    from difflib import get_close_matches  # for an error only

    matches = get_close_matches(word, dict.fromkeys(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
