"""Reads of a shared file system, with three outcomes: ok, wrong or unavailable.

| outcome | what happened | what a caller does |
|---|---|---|
| Ok | the file was read, or certainly does not exist (None, False) | uses the value |
| Wrong | the file was read, and its content is not valid | ignores the file, and keeps it |
| Unavailable | the file server did not respond (EIO, ESTALE, ...), or access was denied (EACCES) | concludes nothing |

Transient errors are retried with growing pauses: for IN_A_JOB seconds in a job, for IN_A_COMMAND seconds elsewhere.
After a read has failed for that long, others are not retried for REST seconds, so that a command that reads a hundred
runs waits only once; the driver of a job retries each read. Callers that poll pass `retry_seconds=0`.

Files are opened anew for each read: over NFS, only a newly opened file shows what other machines have written.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from launcher.errors import CURES, TRANSIENT, RunError, UnavailableError
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io

T = TypeVar("T")
AnyPath = str | Path

IN_A_JOB, IN_A_COMMAND = 60.0, 3.0  # seconds for which transient errors are retried
FIRST, LONGEST = 0.1, 5.0  # first and longest pause between two tries, in seconds
REST = 10.0  # seconds after a failed read in which other reads are not retried

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
UNWRITABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT})  # no read ends so: a lock's file is made if missing
NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.EFBIG})

in_a_job = False  # whether this process is the driver of a job
_rests_until = float("-inf")


class Ok(Struct, Generic[T]):
    """Outcome of a successful read; `value` is what was read, or None (False) if the file does not exist."""

    value: T


class Wrong(Struct):
    """Outcome of reading a file whose content is not valid; `reason` is an error message."""

    reason: str


class Unavailable(Struct):
    """Outcome of a read that failed, so that nothing is known about the file."""

    reason: str  # error message
    errno: int  # error number of the last try

    @property
    def is_transient(self) -> bool:
        """Whether a later try may succeed."""
        return self.errno in TRANSIENT


Outcome = Ok[T] | Wrong | Unavailable


def unwrap(outcome: Outcome[T]) -> T:
    """Returns the value of an Ok outcome; raises UnavailableError or (Wrong) RunError."""
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    if isinstance(outcome, Wrong):
        raise RunError(outcome.reason)
    return outcome.value


def unwrap_or(refused: type[Exception], outcome: Outcome[T], where: str = "") -> T:
    """Like `unwrap`, but raises `refused` where a later try would not help either: Wrong, or access is denied."""
    if isinstance(outcome, Wrong) or (isinstance(outcome, Unavailable) and not outcome.is_transient):
        raise refused(where + outcome.reason)
    return unwrap(outcome)


def exists(path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[bool]:
    """Returns whether a file or folder exists, as an `Outcome`; for `retry_seconds` see `retry_read`."""
    found = retry_read(lambda: os.stat(path), path, retry_seconds=retry_seconds)
    if isinstance(found, Wrong):  # a link that leads to itself
        return Ok(False)
    return Ok(found.value is not None) if isinstance(found, Ok) else found


def read_bytes(path: AnyPath, most: int | None = None, *, retry_seconds: float | None = None) -> Outcome[bytes | None]:
    """Reads all bytes of a file, None if there is none; Wrong: not regular, above `most` (None: RECORD_BYTES)."""
    return retry_read(lambda: safe_io.read_whole(path, most), path, retry_seconds=retry_seconds)


def read_text(path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[str | None]:
    """Reads the text of a file, as `read_bytes` does. Invalid UTF-8 becomes surrogates."""
    return retry_read(lambda: os.fsdecode(safe_io.read_whole(path)), path, retry_seconds=retry_seconds)


def read_json(path: AnyPath, most: int | None = None) -> Outcome[Any]:
    """Reads a JSON file of up to `most` bytes, as `read_bytes` does. Wrong as well if the file is not valid JSON."""
    return retry_read(lambda: safe_io.parse_json(safe_io.read_whole(path, most)), path)


def list_names(folder: AnyPath) -> Outcome[list[str] | None]:
    """Lists the names in a folder, unordered; the outcome's value is None if the folder does not exist."""
    return retry_read(lambda: [entry.name for entry in os.scandir(folder)], folder)


def retry_read(call: Callable[[], T], path: AnyPath, *, retry_seconds: float | None = None) -> Outcome[T | None]:
    """Calls a function that reads a file, and retries it while its OSError is transient; Ok(None): there is no file."""
    global _rests_until
    found = _once(call, path)  # thousands of them end here, and none asks how long it would have been retried
    if not (isinstance(found, Unavailable) and found.is_transient):
        return found
    if retry_seconds is None:
        resting = not in_a_job and time.monotonic() < _rests_until
        retry_seconds = 0.0 if resting else IN_A_JOB if in_a_job or "LAUNCHER_ATTEMPT" in os.environ else IN_A_COMMAND
    for _ in islice(backoff(retry_seconds), 1, None):
        found = _once(call, path)
        if not (isinstance(found, Unavailable) and found.is_transient):
            return found
    if retry_seconds:
        _rests_until = time.monotonic() + REST
    return found


_random = random.SystemRandom()  # a training's own numbers stay as they are


def backoff(limit: float, first: float | None = None, longest: float | None = None) -> Iterator[float]:
    """Yields the seconds since the first try: at once, then after growing, random pauses, until `limit`."""
    began, elapsed = time.monotonic(), 0.0
    pause, longest = FIRST if first is None else first, LONGEST if longest is None else longest
    yield elapsed
    while elapsed < limit:
        time.sleep(pause * _random.uniform(0.5, 1.0))
        pause, elapsed = min(2 * pause, longest), time.monotonic() - began
        yield elapsed


def _once(call: Callable[[], T], path: AnyPath) -> Outcome[T | None]:
    try:
        return Ok(call())
    except ValueError as error:  # the content is not valid, or the name contains a NUL byte
        return Wrong(f"{path} cannot be read: {error}".replace("\0", "\\0"))
    except OSError as error:
        number = error.errno or 0
        if number in ABSENT:
            return Ok(None)
        why = error.strerror or str(error)
        if number in NO_FILE:
            return Wrong(f"{path} cannot be read: {why}")
        how = "written" if number in UNWRITABLE else "read now"
        do = "" if number in TRANSIENT or number not in CURES else f": {CURES[number]}"
        return Unavailable(f"{path} cannot be {how}: {why} ({errno.errorcode.get(number, number)}){do}", number)
