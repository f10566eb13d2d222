"""What a node or a rank tells the run directory, without ever failing the work because of it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.errors import LauncherError
from launcher.files.shared_files import passes
from launcher.runs import directory, event_file

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan
    from launcher.worker.tracking import Tracking

INTERVAL = 0.5  # seconds between two events of a kind that may come often
UNWRITTEN = 1000  # newest events that wait until they can be written
FIRST = 50  # of them that are all kept, so that a short run has a curve, too


def current_attempt() -> directory.Attempt | None:
    """The attempt that this process belongs to, from its environment; None outside of a run."""
    run_dir, number = os.environ.get("LAUNCHER_RUN_DIR"), os.environ.get("LAUNCHER_ATTEMPT")
    return directory.Attempt(directory.Run(Path(run_dir)), int(number)) if run_dir and number else None


class Events:
    """The events of one writer of an attempt. Outside of a run it does nothing.

    What cannot be written now (a full disk, no descriptor) is written with the next event, and does not end a training
    that does not need it.
    """

    def __init__(self, attempt: directory.Attempt | None, writer: str) -> None:
        self._path = attempt.events_file(writer) if attempt else None
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=UNWRITTEN)
        self._failing = False

    def __call__(self, event: str, **values: Any) -> None:
        if self._path is None:
            return
        self._unwritten.append({"event": event, "time": round(time.time(), 6), **values})
        try:
            while self._unwritten:
                event_file.append(self._path, **self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            if not self._failing:
                with contextlib.suppress(OSError):  # the log may be on the disk that is full
                    print(f"launcher: cannot write to {self._path} now: {error}", flush=True)
            self._failing = True
        else:
            self._failing = False


def not_begun(plan: JobPlan | None, writer: str, error: Exception) -> int:
    """Tells why this node's agent cannot be started, and returns the exit code that says whether a retry may cure it.

    Args:
        plan: the run; None: it cannot be read.
        writer: of the event.
        error: why. What could not be read now may be read by the next attempt; nothing else would be different then.
    """
    code = errors.RESUME if passes(error) else errors.NO_RETRY
    host = socket.gethostname()
    cause = f"{host}: {error}"
    print(f"launcher: {cause}", file=sys.stderr, flush=True)
    if attempt := current_attempt():
        Events(attempt, f"{writer}-{host}-{os.getpid()}")("fault", cause=cause, host=host)
        # The agents that wait for this one are killed, and have nothing to say; others that go on without it do later.
        if plan is None or plan.min_nodes == plan.nodes:
            attempt.write_exit_code(code)
    return code


class _Due:
    """Whether the next event of a kind is kept: the first ones all are, later ones if the last is INTERVAL ago."""

    def __init__(self) -> None:
        self._left, self._last = FIRST, 0.0

    def __call__(self, *, always: bool = False) -> bool:
        now = time.monotonic()
        if not (self._left or always or now - self._last >= INTERVAL):
            return False
        self._left, self._last = max(0, self._left - 1), now
        return True


class Reporter:
    """Progress and metrics of rank 0."""

    def __init__(self, attempt: directory.Attempt | None, rank: int) -> None:
        self._attempt = attempt if rank == 0 else None
        self._events = Events(self._attempt, "rank-0")
        self._metrics: dict[str, Any] = {}
        self._due = {"progress": _Due(), "evaluated": _Due()}
        self._tracking: Tracking | None = None
        self._tracked = self._attempt is not None  # as far as is known

    def progress(self, step: int, total: int, **values: Any) -> None:
        """Drives the progress line; cheap enough for every step. A total of 0: nobody knows it."""
        done = 0 < total <= step
        if self._attempt and self._due["progress"](always=done):
            self._events("progress", step=step, total=total, **values)
            self._track("train", values, step, done=done)

    def evaluated(self, step: int, **values: Any) -> None:
        """What an evaluation after `step` steps has come to."""
        if self._attempt and self._due["evaluated"]():
            self._events("evaluated", step=step, **values)
            self._track("eval", values, step)

    def report(self, **metrics: Any) -> None:
        """Adds to the run's result."""
        self._metrics.update(metrics)
        if self._attempt:
            self._attempt.run.write_result(self._metrics)
            self._track("result", metrics, done=True)

    def _track(self, prefix: str, values: dict[str, Any], step: int | None = None, *, done: bool = False) -> None:
        """Hands numbers to the run's trackers, if it has any."""
        if self._tracked and self._tracking is None:
            from launcher.worker import tracking

            try:
                self._tracking = tracking.of(self._attempt) if self._attempt else None
            except (LauncherError, RuntimeError) as error:  # the latter where no thread can be started
                print(f"launcher: nothing is tracked: {error}", file=sys.stderr, flush=True)
            self._tracked = self._tracking is not None
        if self._tracking is not None:
            self._tracking.log(prefix, values, step)
            if done:
                self._tracking.finished()
