"""Reads checkpoint files with retries, and distinguishes damaged files from those that cannot be read now.

Works without torch. A read has three outcomes:

| outcome | what happened | what follows |
|---|---|---|
| right | the file was read, and is valid | the checkpoint is used |
| wrong (`Damaged`) | the file was read in full and is not valid, or it is missing | the checkpoint is passed over |
| unavailable (`CannotRead`) | the file system returned an error | retried; then the attempt ends with exit code 75 |

NFS clients may show an old listing for a while. So a file counts as missing only when its folder was listed in full,
and the listing has not contained the file for LAG seconds. `timeout`: seconds for which a failing read is retried.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from launcher import bounds
from launcher.errors import RESUME, RunError, UnavailableError
from launcher.files import run_files
from launcher.files.shared_files import backoff

LAG = 30.0  # seconds for which an NFS client may show an old listing by default (mount option acdirmin)

T = TypeVar("T")


class CheckpointError(RunError):
    """A checkpoint cannot be used or written. Base class of the errors of checkpoints."""


class Damaged(CheckpointError):
    """A checkpoint was read, and is torn, truncated, changed or not one of ours. An older one can be used instead."""


class CannotRead(CheckpointError, UnavailableError):
    """A checkpoint cannot be read now, and may be sound. The attempt ends, and a later attempt tries again."""

    exit_code = RESUME


class _NotListed(Exception):
    """It was listed in full, and the file is not in it."""


def retry(operation: Callable[[], T], path: Path, timeout: float = 0.0, *, only: Collection[int] | None = None) -> T:
    """Calls an operation, and repeats it with growing pauses while it raises an OSError.

    only: errno values of transient errors; other errors are raised at once. None: all errors are transient.
    Raises CannotRead: the operation has failed for `timeout` seconds.
    Raises Damaged: the file has not been in its folder's listing for LAG seconds, or for `timeout` if that is less.
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
    raise CannotRead(f"{path} could not be read{tried}: {why}")


# The system calls, as functions that tests can replace.
def _open(path: Path) -> io.FileIO:
    return run_files.open_regular(path).detach()  # type: ignore[attr-defined]


def _stat(path: Path) -> os.stat_result:
    return os.stat(path, follow_symlinks=False)


def _entries(folder: Path) -> dict[str, bool]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}


def entries(folder: Path, timeout: float = 0.0, *, missing_ok: bool = False) -> dict[str, bool]:
    """Returns for each name in a folder whether it is a folder (False for links); raises CannotRead."""

    def look() -> dict[str, bool]:
        try:
            return _entries(folder)
        except FileNotFoundError:
            if missing_ok:
                return {}
            raise

    return retry(look, folder, timeout)


def found(operation: Callable[[], T], path: Path) -> T:
    """Calls an operation for `retry`, which takes a missing file for Damaged if the listings lack it or its folder."""
    try:
        return operation()
    except FileNotFoundError:
        if _removed(path):
            raise _NotListed from None
        raise


def _removed(path: Path) -> bool:
    try:
        return path.name not in _entries(path.parent)
    except FileNotFoundError:
        return path.parent.name not in _entries(path.parent.parent)


def size_of_file(path: Path, timeout: float = 0.0) -> int:
    """Returns a file's size in bytes; raises Damaged (missing, or not regular) or CannotRead."""
    status = retry(lambda: found(lambda: _stat(path), path), path, timeout)
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path} is not a file")
    return status.st_size


def read_bytes(path: Path, timeout: float = 0.0) -> bytes:
    """Returns the content of a manifest, which alone has a bound (MANIFEST_BYTES); raises Damaged, CannotRead."""
    size = size_of_file(path, timeout)
    if size > bounds.MANIFEST_BYTES:
        raise Damaged(f"{path} has {size} bytes, more than the {bounds.MANIFEST_BYTES} that are read of such a file")
    buffer = bytearray(size)
    filled = 0
    with RetryingFile(path, timeout) as file:
        while count := file.readinto(memoryview(buffer)[filled:]):
            filled += count
    return bytes(buffer[:filled]) if filled < len(buffer) else bytes(buffer)


class RetryingFile(io.RawIOBase):
    """A file for reading. Failing reads are retried after opening it anew, since the old handle may be stale.

    failure: error of the last read that failed for good, since a library may replace it; None: none failed.
    """

    def __init__(self, path: Path, timeout: float = 0.0) -> None:
        self._path, self._timeout = path, timeout
        self._file: io.FileIO | None = None
        self._position = 0
        self._there = -1  # position of the open file descriptor, which may differ from `_position`
        self.failure: CheckpointError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = (self._retry(self._size) if start is None else start) + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._file is not None and self._there == self._position:  # the usual case, as fast as possible
            try:
                count = self._file.readinto(buffer) or 0
            except OSError:
                self._forget()
                count = self._retry(lambda: self._readinto(buffer))
        else:
            count = self._retry(lambda: self._readinto(buffer))
        self._position += count
        self._there = self._position
        return count

    def _retry(self, operation: Callable[[], T]) -> T:
        try:
            return retry(lambda: found(operation, self._path), self._path, self._timeout)
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
