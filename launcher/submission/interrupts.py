"""What is said at Ctrl-C, and its delay until the scheduler has answered, so that no job is left unrecorded."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from launcher.escapes import clean


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what is there now and what to do with it."""


def say(words: str) -> None:
    """Tells the user, from a signal handler too: past the buffer of sys.stderr, for a write to it that the signal has
    interrupted cannot be entered again (RuntimeError)."""
    with contextlib.suppress(OSError):  # a terminal that is gone
        os.write(2, f"launcher: {clean(words)}\n".encode())


@contextlib.contextmanager
def held_back() -> Iterator[list[int]]:
    """Inside, the first Ctrl-C is only noted in the list that is yielded; the second one raises KeyboardInterrupt.

    Where somebody else has taken the signal, or in a thread, nothing changes.
    """
    noted: list[int] = []

    def interrupted(number: int, _: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt
        say("interrupted: waiting for the scheduler's answer, so that the job is recorded; Ctrl-C again leaves at once")

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
