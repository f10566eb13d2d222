"""Writes what rank 0 reports (progress, evaluations, metrics) to the run directory and to trackers."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from operator import attrgetter
from typing import Any

from launcher.errors import LauncherError
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import Evaluated, Progress
from launcher.worker import tracking
from launcher.worker.tracking import Tracking

INTERVAL = 0.5  # least seconds between two events of one kind, such as progress, after the first ones
FIRST = 50  # so many events of each kind are all written, so that a short run has a curve, too
POINTS = 500  # of what is reported all the time, an event is written when a run is 1/POINTS longer
STEP = 60.0  # seconds after which the step is written even if no values are


def most_events(age: float) -> float:
    """Returns how many events of one kind may have been written `age` seconds after the first.

    | age | 1 minute | 1 hour | 1 day | 60 days | 100 days |
    |---|---|---|---|---|---|
    | events | 157 | 1,417 | 2,975 | 5,020 | 5,275 |

    So the interval grows to 0.2 % of the age, and what is reported rarely is written whenever it is reported.
    """
    return FIRST + POINTS * math.log1p(age / (POINTS * INTERVAL))


class _Due:
    # thins: at most `most_events`, else all

    def __init__(self, *, thins: bool) -> None:
        self._count, self._last, self._thins = 0, 0.0, thins
        self._began = time.monotonic()

    def __call__(self, *, always: bool = False) -> bool:
        now = time.monotonic()
        if not always:
            if self._count >= FIRST and now - self._last < INTERVAL:
                return False
            if self._thins and self._count >= most_events(now - self._began):
                return False
        self._count, self._last = self._count + 1, now
        return True


class Reporter:
    """Writes the reports of rank 0. On other ranks, and outside of a run, its methods write nothing."""

    def __init__(self, attempt: directory.Attempt | None, rank: int) -> None:
        self._attempt = attempt if rank == 0 else None
        self._events = Events(self._attempt, "rank-0")
        self._metrics: dict[str, Any] = {}
        self._left_out: set[str] = set()  # lines about metrics that the result lacks
        # Steps with values may be rare: frequent steps without values must not use up their share of events.
        self._due = {kind: _Due(thins=True) for kind in ("steps", "progress", "evaluated")}
        self._due_to_trackers = {kind: _Due(thins=False) for kind in self._due}
        self._done = False  # whether the last step was the last one of all
        self._stepped = 0.0  # monotonic time of the last event with a step
        self._newest: Progress | None = None  # the newest report of a step, without values
        self._held: dict[str, Progress | Evaluated] = {}  # of each kind the newest report if it was not due
        self._pid = os.getpid()
        self._tracking: Tracking | None = None
        self._tracked = self._attempt is not None  # False as soon as it is known that the run has no trackers

    def progress(self, step: int, total: int, **values: Any) -> None:
        """Reports progress (see `process_group.progress`); the numbers among `values` also go to the trackers."""
        if self._attempt is None:
            return
        kind, now = "progress" if values else "steps", time.monotonic()
        before, self._done = self._done, 0 < total <= step
        done = self._done and not before  # more steps than `total` are not written one by one
        self._newest = Progress(time=time.time(), step=step, total=total)
        written = self._write(kind, replace(self._newest, values=values or None), always=done)
        if not written and now - self._stepped >= STEP:
            written = self._events(self._newest)
        self._stepped = now if written else self._stepped
        self._track("train", values, step, due=self._due_to_trackers[kind](always=done), done=done)

    def evaluated(self, step: int, **values: Any) -> None:
        """Reports the result of an evaluation after `step` steps of the run."""
        if self._attempt is None:
            return
        self._write("evaluated", Evaluated(time=time.time(), step=step, values=values or None))
        self._track("eval", values, step, due=self._due_to_trackers["evaluated"]())

    def report(self, **metrics: Any) -> None:
        """Adds metrics to the run's result, and writes the result."""
        self._metrics.update(metrics)
        if self._attempt:
            for each in self._attempt.run.write_result(self._metrics):
                if each not in self._left_out:
                    self._left_out.add(each)
                    print(
                        f"launcher: the run's result lacks {each}. Write it to a file, and report the file's path",
                        file=sys.stderr, flush=True,
                    )  # fmt: skip
            self._track("result", metrics, done=True)

    def finish(self) -> None:
        """Writes the newest report of each kind if it was not due: the last loss, the last value of an objective."""
        if self._pid != os.getpid():  # in a fork of the rank
            return
        held = sorted(self._held.values(), key=attrgetter("time"))
        self._held = {}
        for event in held:
            self._events(event)
        steps = [event.step for event in held if isinstance(event, Progress)]
        if self._newest and steps and steps[-1] != self._newest.step:
            self._events(self._newest)  # readers of the file's end take the last step from there

    def _write(self, kind: str, event: Progress | Evaluated, *, always: bool = False) -> bool:
        # Writes an event if one of this kind is due, or else keeps it for `finish`
        self._held.pop(kind, None)
        if self._due[kind](always=always):
            return self._events(event)
        self._held[kind] = event
        return False

    def _track(
        self, prefix: str, values: dict[str, Any], step: int | None = None, *, due: bool = True, done: bool = False
    ) -> None:
        # Passes values to the run's trackers, if any (see `Tracking.log`); `done`: whether the work is complete
        if self._tracked and self._tracking is None:
            try:
                self._tracking = tracking.of(self._attempt) if self._attempt else None
            except (LauncherError, RuntimeError) as error:  # RuntimeError if no thread can be started
                print(f"launcher: nothing is tracked: {error}", file=sys.stderr, flush=True)
            self._tracked = self._tracking is not None
        if self._tracking is not None:
            self._tracking.log(prefix, values, step, due=due)
            if done:
                self._tracking.finished()
