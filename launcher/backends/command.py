"""Runs one command of a scheduler, bounded in time."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launcher.backends.base import NoAnswerInTime, QueryError

# What starting a command raises that is in no folder of PATH; the second one where a folder may not be searched.
NOT_ON_PATH = (FileNotFoundError, PermissionError)


def ask(
    *command: str, timeout: float, environment: Mapping[str, str], good: Collection[int] = (0,)
) -> subprocess.CompletedProcess[str]:
    """The answer of a command.

    Args:
        command: the command and its arguments.
        timeout: seconds that it may take.
        environment: its environment.
        good: exit codes that are an answer.

    Raises:
        NoAnswerInTime: it takes too long.
        QueryError: it is not there, cannot be started, or exits with another code.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
            env=environment, check=False,
        )  # fmt: skip
    except NOT_ON_PATH:
        raise QueryError(f"{command[0]} is not on this machine's PATH") from None
    except OSError as error:  # too many processes, say
        raise QueryError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerInTime(f"{command[0]} did not answer within {timeout:g} s") from None
    if done.returncode not in good:
        raise QueryError(f"{command[0]} failed (exit {done.returncode}): {done.stderr.strip() or 'no message'}")
    return done


def hand_over(
    command: Sequence[str], *, timeout: float, environment: Mapping[str, str], text: str | None = None, umask: int = -1
) -> subprocess.CompletedProcess[str]:
    """Runs what hands a job over. It inherits the lock of `runs.only_submitter`, and so holds it until its own end.

    Args:
        command: the command and its arguments.
        timeout: seconds that it may take.
        environment: its environment.
        text: its standard input; None: nothing.
        umask: its umask; -1: ours.

    Raises:
        FileNotFoundError, PermissionError: it is not there (NOT_ON_PATH).
        TimeoutExpired: it takes too long.
    """
    stdin: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    return subprocess.run(
        command, **stdin, capture_output=True, text=True, errors="replace", timeout=timeout, umask=umask,
        env=environment, close_fds=False, check=False,
    )  # fmt: skip
