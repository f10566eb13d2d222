"""Locks on files, with flock.

No lock is taken with lockf, because flock does not see such locks, except over NFS. The kernel releases a lock when its
file is closed, also when the process is killed. A child that inherits the file keeps the lock.

| the file | `acquire` | `try_acquire` | `is_locked` |
|---|---|---|---|
| is not locked | locks it | locks it, yields True | False |
| is locked by another process | waits | yields False | True |
| is on a file system without locks (ENOLCK, ENOTSUP, ...) | runs the block | yields True | False |
| cannot be locked now (EIO, ESTALE, ...) | retries, then UnavailableError | same | same |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from launcher.files.shared_files import retry_read, unwrap

WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_LOCKED = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def acquire(path: Path, *, inheritable: bool = False, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock of a file, made if missing, in the block; waits for it first.

    inheritable: whether programs that are started in the block keep the lock until they end.
    """
    with _open(path) as file:
        os.set_inheritable(file.fileno(), inheritable)
        if not _flock(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if waiting is not None:
                waiting()
            _flock(file, path, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def try_acquire(path: Path) -> Iterator[bool]:
    """Yields True, and holds the lock of a file (made if missing) in the block; False: another process has it."""
    with _open(path) as file:
        yield _flock(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of this file. The check itself takes a shared lock for a moment."""
    with _open(path) as file:
        return not _flock(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _open(path: Path) -> IO[str]:
    descriptor = unwrap(retry_read(lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600), path))
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return open(descriptor, "r+")


def _flock(file: IO[str], path: Path, how: int) -> bool:
    # On a file system without locks it returns True
    def take() -> bool:
        try:
            fcntl.flock(file, how)
        except OSError as error:
            if error.errno in _LOCKED:
                return False
            if error.errno not in WITHOUT_LOCKS:
                raise
        return True

    return bool(unwrap(retry_read(take, path)))
