"""Reads of files that machines share. Each read has one of three outcomes, and none is mistaken for another.

| outcome | what happened | what a caller does |
|---|---|---|
| Ok | the file was read, or does certainly not exist (None, False) | uses the value |
| Wrong | the file was read, and its content is not valid | ignores the file, and keeps it |
| Unavailable | the file server did not respond (EIO, ESTALE, ...), or access was denied (EACCES) | concludes nothing |

Transient errors are retried with growing pauses: for IN_A_JOB seconds in a job, for IN_A_COMMAND seconds elsewhere.
After one read has failed that long, the process's other reads are tried once each for the next REST seconds, so that a
command that reads a hundred runs waits once. Callers that poll pass `retry_seconds=0`.

No file is kept open: over NFS, only a newly opened file shows what other machines have written.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from launcher.errors import RunError, UnavailableError
from launcher.files import run_files

T = TypeVar("T")
S = TypeVar("S")
AnyPath = str | Path

IN_A_JOB, IN_A_COMMAND = 60.0, 3.0  # seconds for which transient errors are retried
FIRST, LONGEST = 0.1, 5.0  # seconds between two tries
REST = 10.0  # seconds after a failed read in which other reads are tried once

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.EFBIG})
TRANSIENT = frozenset({
    errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOLINK,
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ENOBUFS, errno.EPROTO, errno.EBADF,
})  # fmt: skip

_rests_until = float("-inf")


@dataclass(frozen=True)
class Ok(Generic[T]):
    """A value that was read."""

    value: T


@dataclass(frozen=True)
class Wrong:
    """A file that was read, and is not valid."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """A file that could not be read."""

    reason: str
    errno: int

    @property
    def is_transient(self) -> bool:
        """Whether a later try may succeed."""
        return self.errno in TRANSIENT


Outcome = Ok[T] | Wrong | Unavailable


def unwrap(outcome: Outcome[T]) -> T:
    """The value of an Ok outcome.

    Raises:
        UnavailableError: the outcome is Unavailable.
        RunError: the outcome is Wrong.
    """
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    if isinstance(outcome, Wrong):
        raise RunError(outcome.reason)
    return outcome.value


def exists(path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[bool]:
    """Whether a file or folder exists."""
    found = retry_read(lambda: os.stat(path), path, retry_seconds=retry_seconds)
    if isinstance(found, Wrong):  # a link that leads to itself
        return Ok(False)
    return Ok(found.value is not None) if isinstance(found, Ok) else found


def read_bytes(path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[bytes | None]:
    """All bytes of a file; None if it does not exist. Wrong if it is not a regular file, or too large: `run_files`."""
    return retry_read(lambda: run_files.read_whole(path), path, retry_seconds=retry_seconds)


def read_text(path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[str | None]:
    """The text of a file; None if it does not exist. Bytes that are not UTF-8 become surrogates."""
    return map_value(read_bytes(path, retry_seconds=retry_seconds), lambda data: os.fsdecode(data))


def read_json(path: AnyPath) -> Outcome[Any]:
    """The value in a JSON file; None if the file does not exist."""

    def parsed(data: bytes) -> Any:
        try:
            return run_files.parse_json(data)
        except ValueError as error:
            raise RunError(f"{path} cannot be read: {error}") from None

    return map_value(read_bytes(path), parsed)


def list_names(folder: AnyPath) -> Outcome[list[str] | None]:
    """The names of a folder's entries, unordered; None if the folder does not exist."""
    return retry_read(lambda: [entry.name for entry in os.scandir(folder)], folder)


def map_value(outcome: Outcome[T | None], function: Callable[[T], S]) -> Outcome[S | None]:
    """Applies a function to the value of an Ok outcome, unless that is None; a RunError in it becomes Wrong."""
    if not isinstance(outcome, Ok) or outcome.value is None:
        return outcome if not isinstance(outcome, Ok) else Ok(None)
    try:
        return Ok(function(outcome.value))
    except RunError as error:
        return Wrong(str(error))


def retry_read(call: Callable[[], T], path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[T | None]:
    """Runs a read, and repeats it while its error is transient. Ok(None) if the file does not exist.

    Args:
        call: does the read.
        path: the file, for the error text.
        retry_seconds: how long to repeat it; None: as described at the top of this module.
    """
    global _rests_until
    if retry_seconds is None:
        resting = time.monotonic() < _rests_until
        retry_seconds = 0.0 if resting else IN_A_JOB if "LAUNCHER_ATTEMPT" in os.environ else IN_A_COMMAND
    for _ in backoff(retry_seconds):
        found = _once(call, path)
        if not (isinstance(found, Unavailable) and found.is_transient):
            return found
    if retry_seconds:
        _rests_until = time.monotonic() + REST
    return found


def backoff(limit: float, first: float | None = None, longest: float | None = None) -> Iterator[float]:
    """Yields the seconds since the first try, before each try: at once, then after growing pauses, for `limit` seconds.

    The pauses are random, so that a thousand ranks do not all read at the same moment.

    Args:
        limit: seconds.
        first, longest: the first pause and the longest pause, in seconds; None: FIRST, LONGEST.
    """
    began, elapsed = time.monotonic(), 0.0
    pause, longest = FIRST if first is None else first, LONGEST if longest is None else longest
    yield elapsed
    while elapsed < limit:
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        pause, elapsed = min(2 * pause, longest), time.monotonic() - began
        yield elapsed


def is_transient(error: BaseException) -> bool:
    """Whether an error means that a read may succeed later. Pure."""
    return isinstance(error, UnavailableError) or (isinstance(error, OSError) and error.errno in TRANSIENT)


def _once(call: Callable[[], T], path: AnyPath) -> Outcome[T | None]:
    try:
        return Ok(call())
    except ValueError as error:  # the name contains a NUL byte
        return Wrong(f"{path!r} cannot be read: {error}")
    except OSError as error:
        number = error.errno or 0
        if number in ABSENT:
            return Ok(None)
        why = error.strerror or str(error)
        if number in NO_FILE:
            return Wrong(f"{path} cannot be read: {why}")
        return Unavailable(f"{path} cannot be read now: {why} ({errno.errorcode.get(number, number)})", number)
