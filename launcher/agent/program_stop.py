"""When the agents tell a program to stop: its ranks may look for nothing themselves.

| cause | seen by |
|---|---|
| its time is nearly up | the agents that know what is left (time_left.py), and the first one |
| `touch RUN/stop` | the first agent |
| a warning or an end that an agent was told of | that agent, which tells the others |

Whatever the cause, every rank gets `workload.stop_signal` once, and has `launch.grace` seconds. A rank that calls
`launcher.stopping()` looks by itself and is left alone until the scheduler ends the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.failures.codes import StopReason
from launcher.files.shared_files import Ok, exists, retry_read
from launcher.runs import saves
from launcher.runs.time_left import time_left
from launcher.spec.plan import JobPlan

LOOK = 1.0  # seconds between two looks
LAST_WORDS = 5.0  # seconds before the deadline that agents keep for themselves, if the lead allows for it


class Minder:
    """What one agent sees to for a program."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], *, first: bool, now: float) -> None:
        """
        Args:
            plan: the run.
            environ: of this agent.
            first: whether it is the one that looks for the stop file.
            now: seconds, by a monotonic clock, as for the other methods.
        """
        self._plan, self._first, self._next = plan, first, 0.0
        left = time_left(environ)
        self._left = None if left is None else left.seconds
        self._watches = left is not None and (left.sure or first)
        self._began = now
        self._saved = _newest_save(plan)

    def reason(self, now: float) -> StopReason | None:
        """Why the program is to stop now, if it is.

        Args:
            now: seconds.
        """
        if now < self._next:
            return None
        self._next = now + LOOK
        if self._watches and self._left is not None and now - self._began >= self._left - self._plan.resume.lead:
            return StopReason.TIME_LIMIT
        # What cannot be read now is no stop request; there is another look in a second.
        if self._first and exists(Path(self._plan.run_dir) / "stop", retry_seconds=0) == Ok(True):
            return StopReason.STOP_FILE
        return None

    def patience(self, now: float) -> float:
        """Seconds that ranks get from now on to leave by themselves."""
        if self._left is None:
            return float(self._plan.launch.grace)
        left = self._left - (now - self._began)
        return patience(float(self._plan.launch.grace), float(self._plan.resume.lead), left)

    def saved(self) -> bool:
        """Whether the program is known to have saved something since this round began."""
        now = _newest_save(self._plan)
        return now is not None and self._saved is not None and now > self._saved


def _newest_save(plan: JobPlan) -> int | None:
    """When the program saved last, see `saves.newest`; None: nobody can tell now."""
    found = retry_read(lambda: saves.newest(plan), plan.checkpoint.dir, retry_seconds=0)
    return found.value if isinstance(found, Ok) else None


def patience(grace: float, lead: float, left: float) -> float:
    """Seconds for the ranks to leave, of those that are left until the deadline. Pure.

    The grace, but so much less that the agents can still tell how it ended; none where the deadline has passed.
    """
    return max(0.0, min(grace, left - min(LAST_WORDS, lead / 2)) if left > 0 else 0.0)
