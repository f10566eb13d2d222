"""Limits of this process: open files, and what the system does not give just now.

Slurm hands on the soft limit of the shell that submitted, usually 1,024, which select(2) in other programs relies on.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import time
from collections.abc import Callable
from typing import TypeVar

_users: int | None = None  # the soft limit that this process began with; forks inherit it


def raise_limit() -> int:
    """Raises the soft limit (`ulimit -n`) to the hard one (`ulimit -Hn`) if the kernel allows it, and returns it."""
    global _users
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _users is None:
        _users = soft
    with contextlib.suppress(ValueError, OSError):  # sysctl fs.nr_open is lower now than the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def restore_limit() -> None:
    """In a fork that becomes the user's: undoes `raise_limit`."""
    if _users is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_users, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


# -- A process, memory or file descriptor that the system does not give now is waited for


T = TypeVar("T")
PATIENCE = 5.0  # seconds
ERRORS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


def waited_out(call: Callable[[], T]) -> T:
    """Returns what the call returns. Raises OSError: it fails for another reason, or for PATIENCE seconds."""
    give_up, pause = time.monotonic() + PATIENCE, 0.01
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in ERRORS or time.monotonic() + pause >= give_up:
                raise
        time.sleep(pause)
        pause = min(0.5, 2 * pause)
