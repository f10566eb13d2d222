"""Delays Ctrl-C during a submission until the scheduler has answered, so that no job is left unrecorded."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what is there now and what to do with it."""


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
        with contextlib.suppress(OSError):  # a terminal that is gone
            print(
                "launcher: interrupted: waiting for the scheduler's answer, so that the job is recorded; "
                "Ctrl-C again leaves at once", file=sys.stderr, flush=True,
            )  # fmt: skip

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
