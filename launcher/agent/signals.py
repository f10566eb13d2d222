"""Signals that ask an agent to stop. The handlers only record them, and wake the event loop."""

from __future__ import annotations

import signal
import socket

ENDS = (signal.SIGTERM, signal.SIGINT)  # SIGKILL follows soon
WARNS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal, some time before the end


class StopRequested(Exception):
    """A signal asked this agent to stop while it waited for other agents. number: the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Signals:
    """Records the signals that this process gets after `install`.

    wake: a file descriptor that becomes readable when a signal arrives, SIGCHLD included.
    """

    def __init__(self) -> None:
        self._numbers: list[signal.Signals] = []
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.wake = self._reader.fileno()

    def install(self) -> None:
        for number in (*ENDS, *WARNS):
            signal.signal(number, self._take)
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # Slurm sends it before SIGTERM
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler it would not wake a select
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def clear(self) -> None:
        """Empties `wake`. Call it after each wait, before handling events."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass

    def ends(self) -> signal.Signals | None:
        """Returns the first signal of ENDS (a stop request) that arrived; None: none did."""
        return next((number for number in self._numbers if number in ENDS), None)

    def warns(self) -> signal.Signals | None:
        """Returns the first signal of WARNS (the scheduler announces the end) that arrived; None: none did."""
        return next((number for number in self._numbers if number in WARNS), None)

    def require_none(self) -> None:
        """Raises StopRequested if a signal of ENDS has arrived."""
        if (number := self.ends()) is not None:
            raise StopRequested(number)

    def ignore(self) -> None:
        """Ignores further stop requests: the agent is ending already, and has to finish."""
        for number in (*ENDS, *WARNS):
            signal.signal(number, signal.SIG_IGN)

    def descriptors(self) -> list[int]:
        """Returns the file descriptors of this object, which a forked rank has to close."""
        return [self._reader.fileno(), self._writer.fileno()]

    def _take(self, number: int, _: object) -> None:
        self._numbers.append(signal.Signals(number))
