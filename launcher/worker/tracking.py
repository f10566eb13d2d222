"""Passes what rank 0 reports to trackers (TensorBoard, MLflow, W&B) without blocking or failing the work.

`progress`, `evaluated` and `report` put numbers into a queue, which threads empty. If it is full, entries are dropped;
their number is logged at the end. A tracker's first failure is logged; after several in a row it is disabled.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from launcher.log_line import log_line
from launcher.redaction import HIDDEN, is_secret, without_password
from launcher.runs.directory import Attempt
from launcher.worker.tracker import CLOSE_TIMEOUT, About, Entry, Tracker
from launcher.worker.tracking_mlflow import MLflow
from launcher.worker.tracking_tensorboard import TensorBoard
from launcher.worker.tracking_wandb import WandB

QUEUE = 10_000  # most entries in a tracker's queue
BATCH = 200  # most entries that a tracker gets in one call
FAILURES = 3  # failures in a row after which a tracker is disabled


class Tracking:
    """Passes entries to trackers, each in its own thread, so that one that hangs does not block others."""

    def __init__(self, trackers: Mapping[str, Callable[[], Tracker]]) -> None:
        """
        Args:
            trackers: for each tracker its name, and a function that makes it, which is called in the tracker's thread
                since it may take seconds.
        """
        self._feeds = [_Feed(name, make) for name, make in trackers.items()]
        self._step, self._pid = 0, os.getpid()
        self._closed = False
        threading.Thread(target=self._close_at_the_end, name="tracking ends", daemon=False).start()
        self._finalize = Finalize(None, self.close, exitpriority=100)  # at the end of forked processes, too

    def log(self, prefix: str, values: Mapping[str, Any], step: int | None = None) -> None:
        """Queues the numbers among `values`, each as `prefix/name`; returns at once.

        Args:
            prefix: train, eval or result.
            values: the values by name; those that are not numbers are ignored.
            step: steps of the run that are done; None: as many as at the last call.
        """
        self._step = self._step if step is None else step
        if numbers := dict(numbers_in(prefix, values)):
            entry = Entry(self._step, time.time(), numbers)
            for feed in self._feeds:
                feed.put(entry)

    def finished(self) -> None:
        """Records that the work is complete, for `Tracker.close`."""
        for feed in self._feeds:
            feed.done = True

    def close(self) -> None:
        """Waits at most CLOSE_TIMEOUT seconds until the queues are empty, and logs how many entries were lost."""
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        for feed in self._feeds:
            feed.ends.set()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for feed in self._feeds:
            feed.join(deadline - time.monotonic())

    def _close_at_the_end(self) -> None:
        """Closes when the main thread ends, before `atexit` functions run: W&B's would end the W&B run too early."""
        threading.main_thread().join()
        self.close()


class _Feed:
    """The queue of one tracker, and the thread that empties it."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.done, self.ends = False, threading.Event()
        self._name, self._make = name, make
        self._tracker: Tracker | None = None
        self._queue: queue.Queue[Entry] = queue.Queue(QUEUE)
        self._dropped = self._failures = 0
        self._warned = self._given_up = False
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queues an entry, or drops it if the queue is full or the tracker disabled; returns at once."""
        if self._given_up:
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._dropped += 1

    def join(self, timeout: float) -> None:
        """Waits for the thread, at most `timeout` seconds, and logs how many entries were lost."""
        self._thread.join(max(0.0, timeout))
        left = self._dropped + (self._queue.unfinished_tasks if self._thread.is_alive() else 0)
        if left:
            log_line(f"{left} entries did not reach {self._name}: it takes them more slowly than they come, or hangs")

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # while the interpreter shuts down, anything may be gone
            while not (self.ends.is_set() and self._queue.empty()) and not self._given_up:
                if batch := self._batch():
                    self._try(lambda batch=batch: self._open().log(batch))  # type: ignore[misc]
                    for _ in batch:
                        self._queue.task_done()
            if self._tracker is not None and not self._given_up:
                self._try(lambda: self._open().close(self.done))

    def _batch(self) -> list[Entry]:
        """Returns the next entries in the queue, at most BATCH; waits 0.1 s for the first one, so may be empty."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(timeout=0.1))
            while len(found) < BATCH:
                found.append(self._queue.get_nowait())
        return found

    def _open(self) -> Tracker:
        if self._tracker is None:
            self._tracker = self._make()
        return self._tracker

    def _try(self, action: Callable[[], None]) -> None:
        """Calls the tracker, and logs its first failure. FAILURES in a row, or a missing package, disable it."""
        try:
            action()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            if not self._warned:
                self._warned = True
                log_line(f"{self._name} failed, the run continues: {words}")
            if self._failures >= FAILURES or isinstance(error, ImportError):
                self._given_up = True
                log_line(f"{self._name} is given up: no more is tracked there")


def numbers_in(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields (`train/loss`, its value) for each number; numbers in nested mappings as `prefix/outer/inner`. Pure."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers_in(f"{prefix}/{key}", value)
        elif isinstance(value, (int, float)):
            with contextlib.suppress(OverflowError):  # an int may be larger than any float
                yield f"{prefix}/{key}", float(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields (dotted key `workload.lr`, value as text) for each key of a nested config that has a value. Pure.

    Secrets are redacted. `prefix`: text to put in front of each key.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            yield prefix + str(key), _redacted(str(key), str(value))


def _redacted(key: str, value: str) -> str:
    """Returns a config value without secrets, since a tracker may show it to others."""
    if is_secret(key):
        return HIDDEN
    return without_password(value) if "://" in value else value


def of(attempt: Attempt) -> Tracking | None:
    """Starts the trackers of this attempt's run; returns None if the run has none."""
    plan = attempt.run.plan()
    if not plan.track:
        return None

    def about() -> About:
        runs_dir = Path(plan.run_dir.removesuffix(plan.run_id))
        folder = attempt.run.path
        tags = {
            "run": plan.run_id, "attempt": str(attempt.number), "job": os.environ.get("LAUNCHER_JOB_ID", ""),
            "hosts": os.environ.get("LAUNCHER_HOSTS", ""), "cluster": plan.cluster.name,
            "ranks": os.environ.get("WORLD_SIZE", ""), "directory": str(folder),
        }  # fmt: skip
        return About(
            run_id=plan.run_id,
            attempt=attempt.number,
            folder=folder,
            experiment=plan.tracking.experiment,
            uri=plan.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or (runs_dir / "mlflow").as_uri(),
            log_dir=Path(plan.tracking.dir).expanduser() / plan.run_id if plan.tracking.dir else folder / "tensorboard",
            project=plan.tracking.project or os.environ.get("WANDB_PROJECT") or plan.tracking.experiment,
            entity=plan.tracking.entity or os.environ.get("WANDB_ENTITY"),
            mode=plan.tracking.mode or os.environ.get("WANDB_MODE") or "offline",
            group=plan.tracking.experiment if "/" in plan.run_id else None,
            config=dict(flat(attempt.run.record().get("config", {}))),
            tags={name: value for name, value in tags.items() if value},
        )

    known: dict[str, Callable[[About], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}

    def made(name: str) -> Callable[[], Tracker]:
        return lambda: known[name](about())

    return Tracking({name: made(name) for name in plan.track})
