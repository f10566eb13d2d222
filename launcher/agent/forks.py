"""Garbage collection in a process that imports torch and then forks ranks."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Context for forks: garbage of this process, such as the store of an earlier round, is never collected in them.

    A store's destructor joins its thread, which does not exist in a fork: a rank hung for ever in its first collection.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def imports_without_collection() -> Iterator[None]:
    """Context for imports: the garbage collector is off, and ignores the imported objects afterwards.

    During the import of torch it scans all objects many times and finds nothing: 0.15 of 0.85 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
