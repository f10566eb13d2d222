"""Decides when the agents send a stop signal to a program, which need not check for stop requests itself.

| cause | seen by |
|---|---|
| the time limit is near | the agents that know the time left (time_left.py), and the first one |
| `touch RUN/stop` | the first agent |
| a signal to an agent | that agent, which sends a message to the others |

In each case every rank gets `workload.stop_signal` once, and has `launch.grace` seconds. A rank that calls
`launcher.stopping()` checks by itself, and gets no signal until the scheduler ends the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.failures.codes import StopReason
from launcher.files.shared_files import Ok, exists, retry_read
from launcher.runs import saves
from launcher.runs.time_left import time_left
from launcher.spec.plan import JobPlan

LOOK = 1.0  # seconds between two checks
RESERVED = 5.0  # seconds before the deadline that agents reserve for writing the end, or half of the lead


class StopChecker:
    """Checks for stop requests to a program, for one agent."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], *, first: bool, now: float) -> None:
        """
        Args:
            plan: the run.
            environ: this agent's environment.
            first: whether this agent checks for the stop file.
            now: monotonic time in seconds, as in the other methods.
        """
        self._plan, self._first, self._next = plan, first, 0.0
        left = time_left(environ)
        self._left = None if left is None else left.seconds
        self._watches = left is not None and (left.sure or first)
        self._began = now
        self._saved = _newest_save(plan)

    def reason(self, now: float) -> StopReason | None:
        """Returns why the program has to stop now; None: it has not."""
        if now < self._next:
            return None
        self._next = now + LOOK
        if self._watches and self._left is not None and now - self._began >= self._left - self._plan.resume.lead:
            return StopReason.TIME_LIMIT
        # A file server that does not answer is no stop request; the next check is in a second.
        if self._first and exists(Path(self._plan.run_dir) / "stop", retry_seconds=0) == Ok(True):
            return StopReason.STOP_FILE
        return None

    def exit_time(self, now: float) -> float:
        """Returns how many seconds the ranks have from now on until they are killed."""
        if self._left is None:
            return float(self._plan.launch.grace)
        left = self._left - (now - self._began)
        return exit_time(float(self._plan.launch.grace), float(self._plan.resume.lead), left)

    def saved(self) -> bool:
        """Returns whether the program has saved something since this round began; False: no, or unknown."""
        now = _newest_save(self._plan)
        return now is not None and self._saved is not None and now > self._saved


def _newest_save(plan: JobPlan) -> int | None:
    """Returns when the program saved last, see `saves.newest`; None: unknown now."""
    found = retry_read(lambda: saves.newest(plan), plan.checkpoint.dir, retry_seconds=0)
    return found.value if isinstance(found, Ok) else None


def exit_time(grace: float, lead: float, left: float) -> float:
    """Returns the seconds that ranks have to exit after a stop signal. Pure.

    That is the grace period, cut so that the agents can still record the end before the deadline; 0 after it.
    """
    return max(0.0, min(grace, left - min(RESERVED, lead / 2)) if left > 0 else 0.0)
