"""The signals that ask an agent to stop. Handlers only take note: whoever waits is woken, and looks here."""

from __future__ import annotations

import signal
import socket

ENDS = (signal.SIGTERM, signal.SIGINT)  # it will be killed soon
WARNS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal: there is some time yet


class StopRequested(Exception):
    """The agent was asked to stop while it waited for others."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Signals:
    """What this process was sent, from the moment of `install` on.

    Attributes:
        wake: a file descriptor that can be read when a signal has arrived, SIGCHLD included.
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
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, or it would wake nobody
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def clear(self) -> None:
        """Empties `wake`; call it after each wait, before looking at what has happened."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass

    def ends(self) -> signal.Signals | None:
        """The first signal that says that the end is near."""
        return next((number for number in self._numbers if number in ENDS), None)

    def warns(self) -> signal.Signals | None:
        """The first warning."""
        return next((number for number in self._numbers if number in WARNS), None)

    def require_none(self) -> None:
        """
        Raises:
            StopRequested: the end is near.
        """
        if (number := self.ends()) is not None:
            raise StopRequested(number)

    def ignore(self) -> None:
        """The agent is ending already, and must not be cut short."""
        for number in (*ENDS, *WARNS):
            signal.signal(number, signal.SIG_IGN)

    def descriptors(self) -> list[int]:
        """What a forked rank must not keep."""
        return [self._reader.fileno(), self._writer.fileno()]

    def _take(self, number: int, _: object) -> None:
        self._numbers.append(signal.Signals(number))
