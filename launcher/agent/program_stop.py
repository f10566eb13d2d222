"""Decides when the agents send a stop signal to the ranks of a program, which need not check for stop requests itself.

| cause | detected by |
|---|---|
| the time limit is near | the agents that know the time left for sure (time_left.py), and the first agent |
| `touch RUN/stop` | the first agent |
| a signal to an agent | that agent, which sends a message to the others |

In each case every rank gets `workload.stop_signal` once, and has `launch.grace` seconds to exit. A rank that calls
`launcher.stopping()` checks by itself, and gets no signal until the scheduler ends the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.failures.codes import StopReason
from launcher.files.shared_files import Ok, exists
from launcher.runs import saves
from launcher.runs.time_left import time_left
from launcher.spec.plan import JobPlan

LOOK = 1.0  # seconds between two checks
RESERVED = 5.0  # seconds before the deadline (at most half of resume.lead) in which agents record the end


class StopChecker:
    """One agent's checks whether the ranks of a program have to stop."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], *, first: bool, now: float) -> None:
        """first: whether this is the first agent, which checks for the stop file and estimates the time left.
        now: monotonic seconds, as in the other methods.
        """
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

    The result is the grace period, but no longer than until the agents must record the end before the deadline.

    grace: launch.grace, in seconds.
    lead: resume.lead: seconds before the time limit at which a run is asked to stop.
    left: seconds until the scheduler's time limit.
    """
    return max(0.0, min(grace, left - min(RESERVED, lead / 2)) if left > 0 else 0.0)
