"""Writes what rank 0 reports (progress, evaluations, metrics) to the run directory and to trackers."""

from __future__ import annotations

import sys
import time
from typing import Any

from launcher.errors import LauncherError
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import Evaluated, Progress
from launcher.worker import tracking
from launcher.worker.tracking import Tracking

INTERVAL = 0.5  # least seconds between two events of one kind, such as progress, after the first ones
FIRST = 50  # so many events of each kind are all written, so that a short run has a curve, too


class _Due:
    """Decides whether to write the next event of one kind: the first FIRST events, later at most one per INTERVAL."""

    def __init__(self) -> None:
        self._left, self._last = FIRST, 0.0

    def __call__(self, *, always: bool = False) -> bool:
        now = time.monotonic()
        if not (self._left or always or now - self._last >= INTERVAL):
            return False
        self._left, self._last = max(0, self._left - 1), now
        return True


class Reporter:
    """Writes the reports of rank 0. On other ranks, and outside of a run, its methods write nothing."""

    def __init__(self, attempt: directory.Attempt | None, rank: int) -> None:
        self._attempt = attempt if rank == 0 else None
        self._events = Events(self._attempt, "rank-0")
        self._metrics: dict[str, Any] = {}
        # Steps with values may be rare: frequent steps without values must not use up their share of events.
        self._due = {"steps": _Due(), "progress": _Due(), "evaluated": _Due()}
        self._tracking: Tracking | None = None
        self._tracked = self._attempt is not None  # False as soon as it is known that the run has no trackers

    def progress(self, step: int, total: int, **values: Any) -> None:
        """Reports progress (see `process_group.progress`); the numbers among `values` also go to the trackers."""
        done = 0 < total <= step
        if self._attempt and self._due["progress" if values else "steps"](always=done):
            self._events(Progress(step=step, total=total, values=values or None))
            self._track("train", values, step, done=done)

    def evaluated(self, step: int, **values: Any) -> None:
        """Reports the result of an evaluation after `step` steps of the run."""
        if self._attempt and self._due["evaluated"]():
            self._events(Evaluated(step=step, values=values or None))
            self._track("eval", values, step)

    def report(self, **metrics: Any) -> None:
        """Adds metrics to the run's result, and writes the result."""
        self._metrics.update(metrics)
        if self._attempt:
            self._attempt.run.write_result(self._metrics)
            self._track("result", metrics, done=True)

    def _track(self, prefix: str, values: dict[str, Any], step: int | None = None, *, done: bool = False) -> None:
        """Passes values to the run's trackers, if any (see `Tracking.log`); `done`: whether the work is complete."""
        if self._tracked and self._tracking is None:
            try:
                self._tracking = tracking.of(self._attempt) if self._attempt else None
            except (LauncherError, RuntimeError) as error:  # RuntimeError if no thread can be started
                print(f"launcher: nothing is tracked: {error}", file=sys.stderr, flush=True)
            self._tracked = self._tracking is not None
        if self._tracking is not None:
            self._tracking.log(prefix, values, step)
            if done:
                self._tracking.finished()
