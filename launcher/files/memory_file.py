"""An unnamed file in memory, whose descriptor is passed on between processes of one user."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_IN_MEMORY = "/dev/shm"  # noqa: S108  the files there are made with mode 0600, and lose their names at once


def make(name: str) -> int:
    """Makes an unnamed file in memory, which children do not inherit; returns its descriptor.

    os.memfd_create is missing from a Python that was built with a glibc before 2.27 (those of conda and of uv), and
    from kernels before 3.17.
    """
    create = getattr(os, "memfd_create", None)
    if create is not None:
        try:
            return int(create(name))
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
    descriptor, path = tempfile.mkstemp(prefix=f"{name}-", dir=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None)
    os.unlink(path)
    return descriptor


def is_named(descriptor: int, name: str) -> bool:
    """Returns whether a descriptor is of a file that `make` made with this name; OSError: there is none."""
    target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    return target.name.startswith((f"memfd:{name}", f"{name}-"))
