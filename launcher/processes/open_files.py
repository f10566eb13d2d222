"""The limit of open files: processes of the launcher use all that they may; what they start gets the user's limit.

Slurm hands on the soft limit of the shell that submitted, usually 1,024, which select(2) in other programs relies on.
"""

from __future__ import annotations

import resource

_users: int | None = None  # the soft limit that this process began with; forks inherit it


def raise_limit() -> int:
    """Raises the soft limit (`ulimit -n`) to the hard one (`ulimit -Hn`), and returns it."""
    global _users
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _users is None:
        _users = soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def restore_limit() -> None:
    """In a fork that becomes the user's: undoes `raise_limit`."""
    if _users is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_users, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
