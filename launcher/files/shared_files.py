"""Reads of what the machines of a run share. Each has one of three outcomes, and none is taken for another one.

| outcome | what was seen | what follows |
|---|---|---|
| Ok | all of it, or for certain that it is not there (None, False) | what it says |
| Wrong | all of it, and it is not what it should be | it is passed over, and kept |
| Unavailable | the file server did not answer (EIO, ESTALE, ...), or we may not read it (EACCES) | nothing |

What may pass is tried again, with growing pauses: for IN_A_JOB seconds in a job, for IN_A_COMMAND seconds elsewhere.
After one read of a process has been given up, the others are tried once for the next REST seconds: a command that looks
at a hundred runs waits once, and not for each of them. `patience=0` is for whoever looks again anyway.

No handle is kept open: over NFS only a file that is opened anew shows what others have written.
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

IN_A_JOB, IN_A_COMMAND = 60.0, 3.0  # seconds for which what may pass is tried again
FIRST, LONGEST = 0.1, 5.0  # seconds between two tries
REST = 10.0  # seconds after a read was given up in which others are tried once

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.EFBIG})
PASSING = frozenset({
    errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENOLINK,
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENODEV, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ENOBUFS, errno.EPROTO, errno.EBADF,
})  # fmt: skip

_rests_until = float("-inf")


@dataclass(frozen=True)
class Ok(Generic[T]):
    """It was read."""

    value: T


@dataclass(frozen=True)
class Wrong:
    """It was read, and is not what it should be."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """It could not be read."""

    reason: str
    errno: int

    @property
    def passes(self) -> bool:
        """Whether the next try may succeed."""
        return self.errno in PASSING


Outcome = Ok[T] | Wrong | Unavailable


def known(outcome: Outcome[T]) -> T:
    """What was read.

    Raises:
        UnavailableError: it could not be.
        RunError: it is not what it should be.
    """
    if isinstance(outcome, Unavailable):
        raise UnavailableError(outcome.reason)
    if isinstance(outcome, Wrong):
        raise RunError(outcome.reason)
    return outcome.value


def exists(path: AnyPath, *, patience: float | None = None) -> Outcome[bool]:
    """Whether there is such a file or folder."""
    found = tried(lambda: os.stat(path), path, patience=patience)
    if isinstance(found, Wrong):  # a link in a circle leads to nothing
        return Ok(False)
    return Ok(found.value is not None) if isinstance(found, Ok) else found


def read_bytes(path: AnyPath, *, patience: float | None = None) -> Outcome[bytes | None]:
    """All of a file; None: there is none. What is no regular file, or too large, is wrong; see `run_files`."""
    return tried(lambda: run_files.content(path), path, patience=patience)


def read_text(path: AnyPath, *, patience: float | None = None) -> Outcome[str | None]:
    """The same as text, for whose bytes any will do."""
    return then(read_bytes(path, patience=patience), lambda data: os.fsdecode(data))


def read_json(path: AnyPath, *, patience: float | None = None) -> Outcome[Any]:
    """What a file of JSON holds; None: there is none."""

    def parsed(data: bytes) -> Any:
        try:
            return run_files.parsed(data)
        except ValueError as error:
            raise RunError(f"{path} cannot be read: {error}") from None

    return then(read_bytes(path, patience=patience), parsed)


def names(folder: AnyPath, *, patience: float | None = None) -> Outcome[list[str] | None]:
    """The names in a folder, in no order; None: there is none."""
    return tried(lambda: [entry.name for entry in os.scandir(folder)], folder, patience=patience)


def then(outcome: Outcome[T | None], function: Callable[[T], S]) -> Outcome[S | None]:
    """What a function makes of what was read, if there was something; with a RunError it says that it is wrong."""
    if not isinstance(outcome, Ok) or outcome.value is None:
        return outcome if not isinstance(outcome, Ok) else Ok(None)
    try:
        return Ok(function(outcome.value))
    except RunError as error:
        return Wrong(str(error))


def tried(call: Callable[[], T], path: AnyPath, *, patience: float | None = None) -> Outcome[T | None]:
    """What a call that reads comes to, tried again while that may help; None: what it reads is not there.

    Args:
        call: reads.
        path: what it reads, for the reason.
        patience: seconds for which it is tried again; None: by where this process runs, see above.
    """
    global _rests_until
    if patience is None:
        resting = time.monotonic() < _rests_until
        patience = 0.0 if resting else IN_A_JOB if "LAUNCHER_ATTEMPT" in os.environ else IN_A_COMMAND
    for _ in pauses(patience):
        found = _once(call, path)
        if not (isinstance(found, Unavailable) and found.passes):
            return found
    if patience:
        _rests_until = time.monotonic() + REST
    return found


def pauses(limit: float, first: float | None = None, longest: float | None = None) -> Iterator[float]:
    """For each try the seconds since the first one: at once, and after growing pauses until `limit` seconds are over.

    They are random, so that a thousand ranks do not all ask at the same moment.

    Args:
        limit: seconds.
        first, longest: seconds of the first pause and of the longest, at most; None: FIRST, LONGEST.
    """
    began, elapsed = time.monotonic(), 0.0
    pause, longest = FIRST if first is None else first, LONGEST if longest is None else longest
    yield elapsed
    while elapsed < limit:
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        pause, elapsed = min(2 * pause, longest), time.monotonic() - began
        yield elapsed


def passes(error: BaseException) -> bool:
    """Whether an error tells that something cannot be read now, and may be later. Pure."""
    return isinstance(error, UnavailableError) or (isinstance(error, OSError) and error.errno in PASSING)


def _once(call: Callable[[], T], path: AnyPath) -> Outcome[T | None]:
    try:
        return Ok(call())
    except ValueError as error:  # a name with a NUL byte in it
        return Wrong(f"{path!r} cannot be read: {error}")
    except OSError as error:
        number = error.errno or 0
        if number in ABSENT:
            return Ok(None)
        why = error.strerror or str(error)
        if number in NO_FILE:
            return Wrong(f"{path} cannot be read: {why}")
        return Unavailable(f"{path} cannot be read now: {why} ({errno.errorcode.get(number, number)})", number)
