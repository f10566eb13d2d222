"""Garbage collection in a process that imports torch and then forks ranks."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Forks inside; what is garbage then, the store of an earlier round perhaps, is never collected in them.

    A store that is destroyed waits for its thread, and a fork has none but the one that forked it: a rank waited for
    ever in its first collection of garbage.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def imports_without_collection() -> Iterator[None]:
    """Imports inside: the garbage collector is off meanwhile, and leaves alone what was imported.

    It looks through all objects again and again while torch is imported, and finds nothing: 0.15 of 0.85 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
