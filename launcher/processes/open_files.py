"""The limit of open files: processes of the launcher use all that they may; what they start gets the user's limit.

Slurm hands on the soft limit of the shell that submitted, usually 1,024, which select(2) in other programs relies on.
"""

from __future__ import annotations

import contextlib
import resource

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
