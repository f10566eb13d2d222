"""Ctrl-C during a submission: it is delayed until the scheduler has answered, so that no job is left unrecorded."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from launcher.formatting import clean


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a submission. The text names the submitted jobs, and the command that cancels them."""


def print_notice(words: str) -> None:
    """Prints a line to stderr, also in a signal handler, which may have interrupted a write to its buffer."""
    with contextlib.suppress(OSError):  # the terminal is closed
        os.write(2, f"launcher: {clean(words)}\n".encode())


@contextlib.contextmanager
def delayed_interrupt() -> Iterator[list[int]]:
    """Delays Ctrl-C in the block: the first is only recorded (the caller reads the list), the second raises.

    If the program has its own handler of SIGINT, and in other threads than the main one, nothing changes.
    """
    noted: list[int] = []

    def interrupted(number: int, _: FrameType | None) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt
        print_notice(
            "interrupted: waiting for the scheduler's answer, so that the job is recorded; Ctrl-C again leaves at once"
        )

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
