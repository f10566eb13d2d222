"""A process, memory or file descriptor that the system does not give now is waited for."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

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
