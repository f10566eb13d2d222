"""Runs one command of a scheduler, bounded in time."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping, Sequence

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

    Ctrl-C does not reach it, nor does the end of this process: half a submission would be a job that nobody knows of.

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
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", umask=umask, env=environment, close_fds=False,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, problems = process.communicate(text, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed, problems)
