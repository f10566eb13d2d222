"""Writes what rank 0 reports (progress, evaluations, metrics) to the run directory and to trackers."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from operator import attrgetter
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.formatting import log_line
from launcher.redaction import public
from launcher.runs import directory
from launcher.runs.directory import Attempt, Run
from launcher.runs.event_writer import Events
from launcher.runs.events import Evaluated, Progress
from launcher.schedulers.topology import hosts_in
from launcher.worker.trackers import (
    CLOSE_TIMEOUT,
    LOCAL_TIMEOUT,
    About,
    MLflow,
    TensorBoard,
    Tracker,
    TrackerEntry,
    WandB,
    keep,
    kept,
    redone_from,
)

INTERVAL = 0.5  # least seconds between two events of one kind, such as progress, after the first ones
FIRST = 50  # so many events of each kind are all written, so that a short run has a curve, too
POINTS = 500  # of what is reported all the time, an event is written when a run is 1/POINTS longer
STEP = 60.0  # seconds after which the step is written even if no values are


def most_events(age: float) -> float:
    """Returns how many events of one kind may have been written `age` seconds after the first: 5,275 in 100 days."""
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
        self._tracking: TrackerQueues | None = None
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
                    log_line(f"the run's result lacks {each}. Write it to a file, and report the file's path")
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
                self._tracking = tracking_of(self._attempt) if self._attempt else None
            except (LauncherError, RuntimeError) as error:  # RuntimeError if no thread can be started
                log_line(f"nothing is tracked: {error}")
            self._tracked = self._tracking is not None
        if self._tracking is not None:
            self._tracking.log(prefix, values, step, due=due)
            if done:
                self._tracking.finished()


# -- Passes what rank 0 reports to trackers (TensorBoard, MLflow, W&B) without blocking or failing the work: through
# queues, which threads empty. A tracker's first failure is logged; after several in a row it is disabled. What does not
# reach a tracker is kept in the run directory: the next attempt sends it, and so does this module as a program


QUEUE = 10_000  # most entries in a tracker's queue
BATCH = 200  # most entries that a tracker gets in one call
FAILURES = 3  # failures in a row after which a tracker is disabled


class TrackerQueues:
    """Passes entries to trackers, each in its own thread, so that one that hangs does not block others."""

    def __init__(
        self, trackers: Mapping[str, Callable[[], Tracker]], folder: Path | None = None, local: Collection[str] = ()
    ) -> None:
        # trackers: functions that make one, in its thread: it may take seconds. folder: for what does not reach a
        # tracker; None: that is lost. local: trackers that write to files, and are waited for longer at the end.
        self._feeds = [
            _Feed(name, make, unsent(folder, name) if folder else None,
                  LOCAL_TIMEOUT if name in local else CLOSE_TIMEOUT)
            for name, make in trackers.items()
        ]  # fmt: skip
        self._step, self._pid = 0, os.getpid()
        self._held: dict[str, tuple[int, float, Mapping[str, Any]]] = {}  # of each prefix the newest that was not due
        self._closed = False
        threading.Thread(target=self._close_at_the_end, name="tracking ends", daemon=False).start()
        self._finalize = Finalize(None, self.close, exitpriority=100)  # at the end of forked processes, too

    def log(self, prefix: str, values: Mapping[str, Any], step: int | None = None, *, due: bool = True) -> None:
        """Queues the numbers among `values`, each as `prefix/name`; returns at once. step=None: the last call's.

        due: False: queues them at the end, unless newer ones with this prefix come.
        """
        self._step = self._step if step is None else step
        if values:
            self._held[prefix] = (self._step, time.time(), values)
            if due:
                self._put(prefix)

    def finished(self) -> None:
        """Records that the work is complete, for `Tracker.close`."""
        for feed in self._feeds:
            feed.done = True

    def close(self) -> None:
        """Waits until the queues are empty (LOCAL_TIMEOUT for files, CLOSE_TIMEOUT else); logs how many were lost."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        for prefix in sorted(self._held, key=lambda each: self._held[each][1]):
            self._put(prefix)
        for feed in self._feeds:
            feed.ends.set()
        began = time.monotonic()
        for feed in self._feeds:
            feed.join(began + CLOSE_TIMEOUT)
        for feed in self._feeds:
            feed.finish(began)

    def _put(self, prefix: str) -> None:
        step, moment, values = self._held.pop(prefix)
        if numbers := dict(numbers_in(prefix, values)):
            for feed in self._feeds:
                feed.put(TrackerEntry(step, moment, numbers))

    def _close_at_the_end(self) -> None:
        threading.main_thread().join()
        self.close()


class _Feed:
    # The queue of one tracker, and the thread that empties it

    def __init__(self, name: str, make: Callable[[], Tracker], unsent: Path | None, patience: float) -> None:
        self.done, self.ends = False, threading.Event()
        self._name, self._make, self._unsent, self._patience = name, make, unsent, patience
        self._tracker: Tracker | None = None
        self._queue: queue.Queue[TrackerEntry] = queue.Queue(QUEUE)
        self._taken: list[TrackerEntry] = []  # from the queue, and not yet with the tracker
        self._lost = self._failures = 0
        self._warned = self._given_up = self._kept = False
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, entry: TrackerEntry) -> None:
        """Queues an entry, or keeps it in the run directory if the queue is full."""
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lose([entry])

    def join(self, deadline: float) -> None:
        """Waits for the thread until then, and keeps what has not reached the tracker: this process may be killed."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and (left := [*self._taken, *self._queue.queue]):
            self._keep(left)

    def finish(self, began: float) -> None:
        """Waits for the thread as long as this tracker is waited for, and logs how many entries were lost."""
        self._thread.join(max(0.0, began + self._patience - time.monotonic()))
        lost = self._lost + (self._queue.unfinished_tasks if self._thread.is_alive() else 0)
        if lost and self._unsent and self._kept:
            log_line(
                f"{lost} entries did not reach {self._name}, and are kept: the next attempt sends them, or "
                f"`{Path(sys.executable).name} -m launcher.worker.tracking {self._unsent.parent}`"
            )
        elif lost:
            log_line(f"{lost} entries did not reach {self._name}: it takes them more slowly than they come, or hangs")

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # while the interpreter shuts down, anything may be gone
            while not (self.ends.is_set() and self._queue.empty() and not self._taken):
                taken = self._take()
                if taken or (self._taken and self.ends.is_set()):
                    self._send()
                for _ in range(taken):
                    self._queue.task_done()
            if self._tracker is not None and not self._given_up:
                self._try(lambda: self._open().close(self.done))

    def _take(self) -> int:
        before = len(self._taken)
        with contextlib.suppress(queue.Empty):
            self._taken.append(self._queue.get(timeout=0.1))
            while len(self._taken) < before + BATCH:
                self._taken.append(self._queue.get_nowait())
        return len(self._taken) - before

    def _send(self) -> None:
        # If it fails, that is given again with the next, in order
        if not self._given_up and self._try(lambda: self._open().log(self._taken)):
            self._taken = []
            if self._unsent and self._kept and not self._lost and self._queue.empty():
                self._unsent.unlink(missing_ok=True)
                self._kept = False
        elif self._given_up:
            self._lose(self._taken)
            self._taken = []

    def _open(self) -> Tracker:
        if self._tracker is None:
            self._tracker = self._make()
            step = redone_from(self._taken[0])
            if self._unsent and (earlier := kept(self._unsent)):
                self._taken[:0] = [entry for entry in earlier if entry.step < step]  # later ones are reported again
                self._kept = True
        return self._tracker

    def _lose(self, entries: Sequence[TrackerEntry]) -> None:
        self._lost += len(entries)
        self._keep(entries)

    def _keep(self, entries: Sequence[TrackerEntry]) -> None:
        if self._unsent:
            with contextlib.suppress(OSError, ValueError):  # they are counted
                keep(self._unsent, entries)
                self._kept = True

    def _try(self, action: Callable[[], None]) -> bool:
        # FAILURES in a row, or a missing package, disable it
        try:
            action()
            self._failures = 0
            return True
        except Exception as error:
            self._failures += 1
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            if not self._warned:
                self._warned = True
                log_line(f"{self._name} failed, the run continues: {words}")
            if self._failures >= FAILURES or isinstance(error, ImportError):
                self._given_up = True
                log_line(f"{self._name} is given up: no more is tracked there")
            return False


def numbers_in(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields (`train/loss`, its value) for each number; numbers in nested mappings as `prefix/outer/inner`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers_in(f"{prefix}/{key}", value)
        elif isinstance(value, (int, float)):
            with contextlib.suppress(OverflowError):  # an int may be larger than any float
                yield f"{prefix}/{key}", float(value)


def flat_config(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields (`workload.lr`, value as text) for each key with a value of a nested config, secrets redacted."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_config(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            yield prefix + str(key), public(str(key), str(value))  # a tracker may show it to others


_KNOWN: Mapping[str, Callable[[About], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def unsent(folder: Path, name: str) -> Path:
    """Returns the file in a run directory with the entries that did not reach a tracker."""
    return folder / f"unsent-{name}.jsonl"


def tracking_of(attempt: Attempt) -> TrackerQueues | None:
    """Starts the trackers of this attempt's run; returns None if the run has none."""
    plan = attempt.run.plan()
    if not plan.track:
        return None
    tags = {
        "run": plan.run_id, "attempt": str(attempt.number), "job": os.environ.get("LAUNCHER_JOB_ID", ""),
        "hosts": ",".join(hosts_in(os.environ)), "cluster": plan.cluster.name,
        "ranks": os.environ.get("WORLD_SIZE", ""), "directory": str(attempt.run.path),
    }  # fmt: skip
    about = _about(attempt, {name: value for name, value in tags.items() if value})
    local = {"tensorboard": True, "mlflow": about.uri.startswith("file:"), "wandb": about.mode == "offline"}
    make = {name: partial(_KNOWN[name], about) for name in plan.track}
    return TrackerQueues(make, attempt.run.path, [name for name in local if local[name]])


def _about(attempt: Attempt, tags: Mapping[str, str]) -> About:
    plan, folder = attempt.run.plan(), attempt.run.path
    runs_dir = Path(plan.run_dir.removesuffix(plan.run_id))
    chosen, environ = plan.tracking, os.environ
    return About(
        run_id=plan.run_id, attempt=attempt.number, folder=folder, experiment=chosen.experiment,
        uri=chosen.uri or environ.get("MLFLOW_TRACKING_URI") or (runs_dir / "mlflow").as_uri(),
        log_dir=Path(chosen.dir).expanduser() / plan.run_id if chosen.dir else folder / "tensorboard",
        project=chosen.project or environ.get("WANDB_PROJECT") or chosen.experiment,
        entity=chosen.entity or environ.get("WANDB_ENTITY"),
        mode=chosen.mode or environ.get("WANDB_MODE") or "offline",
        group=chosen.experiment if "/" in plan.run_id else None,
        config=dict(flat_config(attempt.run.record().get("config", {}))), tags=tags,
    )  # fmt: skip


def send_unsent(folder: Path) -> int:
    """Sends what did not reach the trackers of a run; returns the exit code."""
    run, code = Run(folder.absolute()), 0
    for name in run.plan().track:
        entries = kept(unsent(run.path, name))
        if not entries:
            continue
        try:
            tracker = _KNOWN[name](_about(run.attempts()[-1], {}))
            tracker.log(entries)
            tracker.close(done=run.result() is not None)
        except Exception as error:
            log_line(f"{name} failed, and nothing is removed: {type(error).__name__}: {error}")
            code = 1
            continue
        unsent(run.path, name).unlink()
        print(f"{len(entries)} entries were given to {name}")
    return code


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m launcher.worker.tracking RUN_DIRECTORY")
    try:
        sys.exit(send_unsent(Path(sys.argv[1])))
    except LauncherError as problem:
        sys.exit(f"launcher: {problem}")
