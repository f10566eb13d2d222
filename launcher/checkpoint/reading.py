"""Reading what others have written: it is right, it is wrong, or it cannot be read now. Works without torch.

| outcome | what was seen | what is done |
|---|---|---|
| right | | it is used |
| wrong (`Damaged`) | bytes, or a folder's listing, were read in full and do not fit | it is passed over, and kept |
| unavailable (`Unavailable`) | the file system gave an error | it is tried again; then the attempt ends with 75 |

A file that is missing is both: NFS clients go on showing an old listing for a while. It counts as wrong when the
listing of its folder, read in full, has not had it for LAG seconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from launcher.errors import RESUME, RunError, UnavailableError
from launcher.files import run_files
from launcher.files.shared_files import backoff

LAG = 30.0  # seconds for which a client may show an old listing; NFS's default (acdirmin)

T = TypeVar("T")


class CheckpointError(RunError):
    """A checkpoint cannot be used or written."""


class Damaged(CheckpointError):
    """It was read in full and is torn, truncated, changed, or not one of ours: the one before it can be used."""


class Unavailable(CheckpointError, UnavailableError):
    """It cannot be read now, and may be sound: the attempt ends, and a later one tries again."""

    exit_code = RESUME


class _NotListed(Exception):
    """The folder was read in full, and a file that should be in it is not."""


def retried(operation: Callable[[], T], path: Path, timeout: float = 0.0, *, only: Collection[int] | None = None) -> T:
    """The operation's result; while it raises an OSError it is called again, with growing pauses.

    Args:
        operation: it may be called any number of times.
        path: what it is about.
        timeout: seconds for which it is called again; 0: it is called once.
        only: numbers of the errors that may pass; others are raised as they are. None: all may.

    Raises:
        Unavailable: it went on failing for `timeout` seconds.
        Damaged: a file has not been in its folder's listing for LAG seconds, or `timeout` if that is less.
        OSError: one that is not in `only`.
    """
    why = ""
    for elapsed in backoff(timeout):
        try:
            return operation()
        except _NotListed:
            last = "it is missing"
            if elapsed >= min(timeout, LAG):
                raise Damaged(f"{path} is missing") from None
        except OSError as error:
            last = error.strerror or str(error)
            if only is not None and error.errno not in only:
                raise
        if timeout > 0 and not why:
            print(f"launcher: {path}: {last}; trying again for up to {timeout:g} s", flush=True)
        why = last
    tried = f" for {timeout:g} s (checkpoint.read_timeout)" if timeout > 0 else ""
    raise Unavailable(f"{path} could not be read{tried}: {why}")


# The system calls, by names of their own so that tests can have them fail.
def _open(path: Path) -> io.FileIO:
    return run_files.open_regular(path).detach()  # type: ignore[attr-defined]


def _stat(path: Path) -> os.stat_result:
    return os.stat(path, follow_symlinks=False)


def _entries(folder: Path) -> dict[str, bool]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}


def entries(folder: Path, timeout: float = 0.0, *, missing_ok: bool = False) -> dict[str, bool]:
    """What is in the folder, by name, and whether it is a folder (links are none).

    Raises:
        Unavailable: it cannot be listed.
    """

    def look() -> dict[str, bool]:
        try:
            return _entries(folder)
        except FileNotFoundError:
            if missing_ok:
                return {}
            raise

    return retried(look, folder, timeout)


def _found(operation: Callable[[], T], path: Path) -> T:
    """The operation's result; raises _NotListed for a file that its folder does not list."""
    try:
        return operation()
    except FileNotFoundError:
        if path.name not in _entries(path.parent):
            raise _NotListed from None
        raise


def size_of_file(path: Path, timeout: float = 0.0) -> int:
    """Bytes of a file.

    Raises:
        Damaged: it is missing, or not a file.
        Unavailable: nobody can tell.
    """
    status = retried(lambda: _found(lambda: _stat(path), path), path, timeout)
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path} is not a file")
    return status.st_size


def read_bytes(path: Path, timeout: float = 0.0) -> bytes:
    """All of a file of some kilobytes.

    Raises:
        Damaged: it is missing, not a file, or too large.
        Unavailable: it cannot be read.
    """
    size = size_of_file(path, timeout)
    if size > run_files.RECORD_LIMIT:
        raise Damaged(f"{path} has {size} bytes, and no more than {run_files.RECORD_LIMIT} are read of such a file")
    buffer = bytearray(size)
    filled = 0
    with SteadyFile(path, timeout) as file:
        while count := file.readinto(memoryview(buffer)[filled:]):
            filled += count
    return bytes(buffer[:filled]) if filled < len(buffer) else bytes(buffer)


class SteadyFile(io.RawIOBase):
    """A file for reading. A read that fails is tried again, with the file opened anew (its old handle may be stale)."""

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path, self._timeout = path, timeout
        self._file: io.FileIO | None = None
        self._position = 0
        self._there = -1  # where the open file is
        self.failure: CheckpointError | None = None  # what a read raised; a library in between may hide it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = (self._steady(self._size) if start is None else start) + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._file is not None and self._there == self._position:  # nearly always, and without a detour
            try:
                count = self._file.readinto(buffer) or 0
            except OSError:
                self._forget()
                count = self._steady(lambda: self._readinto(buffer))
        else:
            count = self._steady(lambda: self._readinto(buffer))
        self._position += count
        self._there = self._position
        return count

    def _steady(self, operation: Callable[[], T]) -> T:
        try:
            return retried(lambda: _found(operation, self._path), self._path, self._timeout)
        except CheckpointError as error:
            self.failure = error
            raise

    def _readinto(self, buffer: Any) -> int:
        return self._with_file(lambda file: file.readinto(buffer) or 0)

    def _size(self) -> int:
        return self._with_file(lambda file: os.fstat(file.fileno()).st_size)

    def _with_file(self, use: Callable[[io.FileIO], T]) -> T:
        try:
            if self._file is None:
                self._file = _open(self._path)
            self._file.seek(self._position)
            self._there = self._position
            return use(self._file)
        except OSError:
            self._forget()
            raise

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a stale handle cannot even be closed
                file.close()

    def close(self) -> None:
        self._forget()
        super().close()
