"""Locks on files of a folder that several processes use. The one place that takes them and asks for them.

All are taken with flock: a lock taken with one call is not seen by another (lockf), except over NFS. Each is released
when its file is closed, by the kernel too, however the process ends; children that inherit it hold it as well.

| the file | who looks | |
|---|---|---|
| can be locked | | is locked |
| is locked by another process | waits, or asks only | says so |
| is on a file system without locks (ENOLCK, ENOTSUP, ...) | | counts as locked by us: nothing keeps others out there |
| cannot be locked now (EIO, ESTALE, ...) | tries again for a while | UnavailableError |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from launcher.files.shared_files import known, tried

WITHOUT = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def held(path: Path, *, inheritable: bool = False, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock inside, having waited for whoever holds it.

    Args:
        path: the file; it is made.
        inheritable: programs that are started inside hold the lock as well, until their own end.
        waiting: is called before a wait.

    Raises:
        UnavailableError: nobody can tell whether it is held.
    """
    with _opened(path) as file:
        os.set_inheritable(file.fileno(), inheritable)
        if not _taken(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if waiting is not None:
                waiting()
            _taken(file, path, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Holds the lock inside, or yields False because another process does.

    Raises:
        UnavailableError: nobody can tell.
    """
    with _opened(path) as file:
        yield _taken(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether somebody holds it. Asking is in nobody's way, but for the moment that it takes.

    Raises:
        UnavailableError: nobody can tell.
    """
    with _opened(path) as file:
        return not _taken(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _opened(path: Path) -> IO[str]:
    descriptor = known(tried(lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600), path))
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return open(descriptor, "r+")


def _taken(file: IO[str], path: Path, how: int) -> bool:
    """Whether it is locked now, or cannot be on this file system."""

    def take() -> bool:
        try:
            fcntl.flock(file, how)
        except OSError as error:
            if error.errno in _HELD_BY_ANOTHER:
                return False
            if error.errno not in WITHOUT:
                raise
        return True

    return bool(known(tried(take, path)))
