"""What a fork of an agent must not take along."""

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
