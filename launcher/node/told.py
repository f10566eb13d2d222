"""The signals that ask an agent to stop."""

from __future__ import annotations

import signal

from torch.distributed.elastic.multiprocessing.api import SignalException

ENDS = (signal.SIGTERM, signal.SIGINT)  # it will be killed soon
WARNS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal: there is some time yet


class Told:
    """What this process was told, from the moment of `install` on.

    Attributes:
        patient: whoever watches ranks looks here by itself. Otherwise a signal that ends raises SignalException.
    """

    def __init__(self) -> None:
        self.patient = False
        self._numbers: list[signal.Signals] = []

    def install(self) -> None:
        for number in (*ENDS, *WARNS):
            signal.signal(number, self._take)
        signal.signal(signal.SIGCONT, signal.SIG_IGN)  # Slurm sends it before SIGTERM

    def ends(self) -> signal.Signals | None:
        """The first signal that says that the end is near."""
        return next((number for number in self._numbers if number in ENDS), None)

    def warns(self) -> signal.Signals | None:
        """The first warning."""
        return next((number for number in self._numbers if number in WARNS), None)

    def ignore(self) -> None:
        """It is ending already, and must not be cut short."""
        for number in (*ENDS, *WARNS):
            signal.signal(number, signal.SIG_IGN)

    def _take(self, number: int, _: object) -> None:
        self._numbers.append(signal.Signals(number))
        if number in ENDS and not self.patient:
            raise SignalException("told to stop", signal.Signals(number))
