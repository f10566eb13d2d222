"""Why an agent should stop: signals, the stop file, and the time that is left."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from launcher.failures.codes import StopReason
from launcher.files.shared_files import Ok, exists
from launcher.runs import saves
from launcher.runs.time_left import time_left
from launcher.spec.plan import JobPlan

ENDS = (signal.SIGTERM, signal.SIGINT)  # SIGKILL follows soon
WARNS = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm's --signal, some time before the end


class AskedToStop(Exception):
    """A signal asked this agent to stop while it waited for other agents. number: the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Signals:
    """Records the signals of this process after `install`; `wake` is readable when one arrives, SIGCHLD included."""

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
        """Raises AskedToStop if a signal of ENDS has arrived."""
        if (number := self.ends()) is not None:
            raise AskedToStop(number)

    def ignore(self) -> None:
        """Ignores further stop requests: the agent is ending already, and has to finish."""
        for number in (*ENDS, *WARNS):
            signal.signal(number, signal.SIG_IGN)

    def descriptors(self) -> list[int]:
        """Returns the file descriptors of this object, which a forked rank has to close."""
        return [self._reader.fileno(), self._writer.fileno()]

    def _take(self, number: int, _: object) -> None:
        self._numbers.append(signal.Signals(number))


# -- Decides when the agents send a stop signal to the ranks of a program, which need not check for stop requests itself
#
# | cause | detected by |
# |---|---|
# | the time limit is near | the agents that know the time left for sure (time_left.py), and the first agent |
# | `touch RUN/stop` | the first agent |
# | a signal to an agent | that agent, which sends a message to the others |
#
# In each case every rank gets `workload.stop_signal` once, and has `launch.grace` seconds to exit. A rank that calls
# `launcher.should_stop()` checks by itself, and gets no signal until the scheduler ends the attempt.


LOOK = 1.0  # seconds between two checks
RESERVED = 5.0  # seconds before the deadline (at most half of resume.lead) in which agents record the end


class StopChecker:
    """One agent's checks whether the ranks of a program have to stop."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], *, first: bool, now: float) -> None:
        # first: this is the first agent, which checks for the stop file and estimates the time left
        self._plan, self._first, self._next = plan, first, 0.0
        left = time_left(environ)
        self._left = None if left is None else left.seconds
        self._watches = left is not None and (left.sure or first)
        self._began = now

    def reason(self, now: float) -> StopReason | None:
        """Returns why the program has to stop now; None: it does not have to. Checks at most every LOOK seconds."""
        if now < self._next:
            return None
        self._next = now + LOOK
        if self._watches and self._left is not None and now - self._began >= self._left - self._plan.resume.lead:
            return StopReason.TIME_LIMIT
        # A file that cannot be read now is no stop request; the next check is in a second.
        if self._first and exists(Path(self._plan.run_dir) / "stop", retry_seconds=0) == Ok(True):
            return StopReason.STOP_FILE
        return None

    def exit_time(self, now: float) -> float:
        """Returns how many seconds the ranks have to exit if they get the stop signal now; see function `exit_time`."""
        if self._left is None:
            return float(self._plan.launch.grace)
        left = self._left - (now - self._began)
        return exit_time(float(self._plan.launch.grace), float(self._plan.resume.lead), left)


def saved(plan: JobPlan, since: int) -> bool | None:
    """Returns whether a program has saved something since a time in nanoseconds; None: unknown.

    The leader calls it, and must not be silent for as long as launch.heartbeat.
    """
    try:
        return saves.newest(plan, since, plan.launch.heartbeat / 3) > since
    except OSError:
        return None


def exit_time(grace: float, lead: float, left: float) -> float:
    """Returns the seconds that ranks have to exit after a stop signal, before they are killed.

    The grace period, but no longer than until the agents must record the end before the deadline.
    grace, lead (launch.grace, resume.lead), left (until the scheduler's time limit): seconds.
    """
    return max(0.0, min(grace, left - min(RESERVED, lead / 2)) if left > 0 else 0.0)
