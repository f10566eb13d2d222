"""Writes what rank 0 reports to the run directory and, by queues, to MLflow, TensorBoard and Weights & Biases."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import posixpath
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from multiprocessing.util import Finalize
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launcher.errors import LauncherError
from launcher.files import safe_io
from launcher.files.retried_reads import read_text, unwrap
from launcher.formatting import flat, log_line
from launcher.redaction import public
from launcher.runs import lease_and_locks
from launcher.runs.directory import Attempt, Events
from launcher.runs.events import Evaluated, Progress
from launcher.schedulers.topology import hosts_in

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
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

    def progress(self, step: int, total: int, values: Mapping[str, Any] | None = None) -> None:
        """Reports progress (see `process_group.progress`); the numbers among `values` also go to the trackers."""
        if self._attempt is None:
            return
        step, total, values = map(safe_io.python_numbers, (step, total, values or {}))  # now, as tensors change
        kind, now = "progress" if values else "steps", time.monotonic()
        before, self._done = self._done, 0 < total <= step
        done = self._done and not before  # more steps than `total` are not written one by one
        self._newest = Progress(time=time.time(), step=step, total=total)
        written = self._write(kind, replace(self._newest, values=values or None), always=done)
        if not written and now - self._stepped >= STEP:
            written = self._events(self._newest)
        self._stepped = now if written else self._stepped
        self._track("train", values, step, due=self._due_to_trackers[kind](always=done), done=done)

    def evaluated(self, step: int, values: Mapping[str, Any]) -> None:
        if self._attempt is None:
            return
        step, values = map(safe_io.python_numbers, (step, values))
        self._write("evaluated", Evaluated(time=time.time(), step=step, values=values or None))
        self._track("eval", values, step, due=self._due_to_trackers["evaluated"]())

    def report(self, metrics: Mapping[str, Any]) -> None:
        metrics = safe_io.python_numbers(metrics)
        self._metrics.update(metrics)
        if self._attempt:
            lease_and_locks.require()
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

    @cached_property
    def _tracking(self) -> TrackerQueues | None:
        try:
            return tracking_of(self._attempt) if self._attempt else None
        except (LauncherError, RuntimeError) as error:  # RuntimeError if no thread can be started
            log_line(f"nothing is tracked: {error}")
            return None

    def _track(
        self, prefix: str, values: Mapping[str, Any], step: int | None = None, *, due: bool = True, done: bool = False
    ) -> None:
        # done: whether the work is complete
        if self._tracking is not None:
            self._tracking.log(prefix, values, step, due=due)
            if done:
                self._tracking.finished()


# -- Passes what rank 0 reports to trackers without blocking or failing the work: through queues, which threads empty


QUEUE = 10_000  # most entries in a tracker's queue
BATCH = 200  # most entries that a tracker gets in one call
FAILURES = 3  # failures in a row after which a tracker is disabled
CLOSE_TIMEOUT = 5.0  # seconds to wait at the end for entries that have not reached a server
LOCAL_TIMEOUT = 60.0  # the same for trackers that write to files: on a busy node, their start alone takes longer


@dataclass(frozen=True)
class TrackerEntry:
    step: int  # steps of the run that are done
    moment: float  # when they were reported, in seconds since the epoch
    values: Mapping[str, float]  # the numbers by name (`train/loss`)


class Tracker(Protocol):
    """A tracker. All methods are called in one thread, and may raise any exception."""

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        """Writes entries, in order; the first call starts the tracker's run."""

    def close(self, done: bool) -> None:
        """Ends the tracker's run; unless `done`, a later attempt may continue it."""


class TrackerQueues:
    """Passes entries to trackers, each in its own thread, so that one that hangs does not block others."""

    def __init__(self, trackers: Mapping[str, Callable[[], Tracker]], local: Collection[str] = ()) -> None:
        # trackers: functions that make one, in its thread: it may take seconds. local: those that write to files
        self._feeds = [
            _Feed(name, make, LOCAL_TIMEOUT if name in local else CLOSE_TIMEOUT) for name, make in trackers.items()
        ]
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

    def __init__(self, name: str, make: Callable[[], Tracker], patience: float) -> None:
        self.done, self.ends = False, threading.Event()
        self._name, self._make, self._patience = name, make, patience
        self._tracker: Tracker | None = None
        self._queue: queue.Queue[TrackerEntry] = queue.Queue(QUEUE)
        self._taken: list[TrackerEntry] = []  # from the queue, and not yet with the tracker
        self._lost = self._failures = 0
        self._warned = self._given_up = False
        self._thread = threading.Thread(target=self._run, name=f"tracking {name}", daemon=True)
        self._thread.start()

    def put(self, entry: TrackerEntry) -> None:
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lost += 1

    def finish(self, began: float) -> None:
        """Waits for the thread as long as this tracker is waited for, and logs how many entries were lost."""
        self._thread.join(max(0.0, began + self._patience - time.monotonic()))
        if lost := self._lost + (self._queue.unfinished_tasks if self._thread.is_alive() else 0):
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
        sent = not self._given_up and self._try(lambda: self._open().log(self._taken))
        if sent or self._given_up:
            self._lost += 0 if sent else len(self._taken)
            self._taken = []

    def _open(self) -> Tracker:
        if self._tracker is None:
            self._tracker = self._make()
        return self._tracker

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
                log_line(f"{self._name} is disabled: nothing more is tracked there")
            return False


def numbers_in(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields (`train/loss`, its value) for each number; numbers in nested mappings as `prefix/outer/inner`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers_in(f"{prefix}/{key}", value)
        elif isinstance(value, (int, float)):
            with contextlib.suppress(OverflowError):  # an int may be larger than any float
                yield f"{prefix}/{key}", float(value)


def flat_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the keys of a config that have values (`workload.lr`), each with its text, secrets redacted."""
    shown = flat(public("", dict(config)))  # a tracker may show it to others
    return {key: str(value) for key, value in shown.items() if value is not None and value not in ([], {})}


@dataclass(frozen=True)
class About:
    run_id: str
    folder: Path
    experiment: str
    uri: str
    log_dir: Path
    # the run's config as text, by dotted key (`workload.lr`), without secrets
    config: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)  # other facts (job, hosts, ...)
    # project, entity, mode, group: W&B's settings of these names; an empty entity or group is W&B's default
    project: str = ""
    entity: str | None = None
    mode: str = "offline"
    group: str | None = None


# -- MLflow keeps every value that it gets, so values of steps that a later attempt repeats are left out. Parameters
# cannot be changed either: those of the first attempt stay


# Limits, in seconds and tries, for a server that does not respond. By default one call takes minutes.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3 prefers a database, which does not suit a cluster's file system
}
MLFLOW_RUN = "mlflow_run"  # file in the run directory: the tracking URI and the id of the run there
METRICS = 1000  # most metrics per call
PARAMETERS = 100  # most parameters per call
LONGEST = 500  # characters of a parameter's value


class MLflow:
    """Writes one MLflow run for all attempts of a run."""

    def __init__(self, about: About) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # MLflow takes a second, and may not be here
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._about, self._entities = about, entities
        self._client: Any = MlflowClient(tracking_uri=about.uri)
        self._run: str | None = None
        self._known: frozenset[str] = frozenset()  # metrics that earlier attempts have logged
        self._last: dict[str, int] = {}  # the last step of each of those metrics, as far as it was looked up

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        run = self._run or self._begin()
        metrics = [
            self._entities.Metric(name, value, int(entry.moment * 1000), entry.step)
            for entry in entries
            for name, value in zip(map(_mlflow_name, entry.values), entry.values.values(), strict=True)
            if entry.step > self._last_step(name)
        ]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(run, metrics=metrics[start : start + METRICS])

    def close(self, done: bool) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if done else "KILLED")

    def _begin(self) -> str:
        run = self._earlier()
        if run is None:
            experiment = self._client.get_experiment_by_name(self._about.experiment)
            number = experiment.experiment_id if experiment else self._new_experiment()
            made = self._client.create_run(number, run_name=self._about.run_id, tags=self._tags())
            run = made.info.run_id
            safe_io.write(self._about.folder / MLFLOW_RUN, f"{self._about.uri} {run}\n")
            config = {_mlflow_name(key): value[:LONGEST] for key, value in self._about.config.items()}
            all_of_them = [self._entities.Param(key, value) for key, value in config.items()]
            for start in range(0, len(all_of_them), PARAMETERS):
                self._client.log_batch(run, params=all_of_them[start : start + PARAMETERS])
        else:
            self._client.update_run(run, status="RUNNING")
            for name, value in self._tags().items():
                self._client.set_tag(run, name, value)
        self._run = run
        return run

    def _new_experiment(self) -> str:
        try:
            return str(self._client.create_experiment(self._about.experiment))
        except Exception:  # another point of the sweep may have just made it
            found = self._client.get_experiment_by_name(self._about.experiment)
            if found is None:
                raise
            return str(found.experiment_id)

    def _earlier(self) -> str | None:
        uri, _, run = (unwrap(read_text(self._about.folder / MLFLOW_RUN)) or "").strip().rpartition(" ")
        if uri != self._about.uri:  # none, or on another server
            return None
        self._known = frozenset(self._client.get_run(run).data.metrics)
        return run

    def _tags(self) -> dict[str, str]:
        return {f"launcher.{name}": value for name, value in self._about.tags.items()}

    def _last_step(self, name: str) -> int:
        if name not in self._last:
            history = self._client.get_metric_history(self._run, name) if name in self._known else ()
            self._last[name] = max((metric.step for metric in history), default=-1)
        return self._last[name]


def _mlflow_name(name: str) -> str:
    # MLflow refuses all that it is given for one name with other characters, or that is no plain path
    return posixpath.normpath(re.sub(r"[^/\w.\- :]", "_", name))[:250]


FILES = "events.out.tfevents.*"  # TensorBoard's


class TensorBoard:
    """Writes one TensorBoard folder for all attempts of a run."""

    def __init__(self, about: About) -> None:
        # TensorBoard takes a second, and may not be here
        from torch.utils.tensorboard import SummaryWriter

        self._about, self._kind = about, SummaryWriter
        self._writer: SummaryWriter | None = None
        self._before: set[Path] | None = None  # files of earlier attempts; None once this attempt's file has mode 0600

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        writer = self._writer or self._begin(entries[0])
        for entry in entries:
            for name, value in entry.values.items():
                writer.add_scalar(name, value, entry.step, walltime=entry.moment)
        writer.flush()
        if self._before is not None:
            for path in set(self._about.log_dir.glob(FILES)) - self._before:
                path.chmod(0o600)  # it was made with the umask of the user's code
            self._before = None

    def close(self, done: bool) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, first: TrackerEntry) -> SummaryWriter:
        about, step = self._about, redone_from(first)
        self._before = set(about.log_dir.glob(FILES)) if about.log_dir.is_dir() else set()
        safe_io.make_folder(about.log_dir)
        self._writer = self._kind(str(about.log_dir), purge_step=step if self._before else None)
        self._writer.add_text("config", _table(about.config), step)
        self._writer.add_text("run", _table(about.tags), step)
        return self._writer


def redone_from(first: TrackerEntry) -> int:
    """Returns the first step for which to hide earlier attempts' training values: not one only evaluated here."""
    trains = any(name.startswith("train/") for name in first.values)
    return first.step if trains else first.step + 1


def _table(values: Mapping[str, str]) -> str:
    rows = [f"| {key} | `{value.replace('|', chr(92) + '|')}` |" for key, value in values.items()]
    return "\n".join(["| key | value |", "|---|---|", *rows])


# -- W&B keeps every value that it gets, too. In offline mode each start of rank 0 writes a folder of its own; `wandb
# sync` combines them into one run by its id


WANDB_RUN = "wandb_run"  # JSON file in the run directory: W&B's id of the run, its rows, the last step of each metric
STEP_METRIC = "step"  # the metric on W&B's horizontal axis
# Limits, in seconds and tries, for a server that does not respond. W&B's defaults take minutes, also when it finishes.
# Values that did not reach the server are still in the run directory, for `wandb sync`.
LIMITS = {
    "init_timeout": 10, "x_graphql_timeout_seconds": 5, "x_graphql_retry_max": 1, "x_file_stream_timeout_seconds": 5,
    "x_file_stream_retry_max": 3, "x_file_stream_retry_wait_max_seconds": 2, "x_file_transfer_timeout_seconds": 5,
    "x_file_transfer_retry_max": 1,
}  # fmt: skip


class WandB:
    """Writes one W&B run for all attempts of a run."""

    def __init__(self, about: About) -> None:
        # W&B takes a second, and may not be here
        import wandb

        self._about, self._wandb = about, wandb
        self._run: Any = None
        self._id, self._rows, self._last = _earlier(about)

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        if self._run is None:
            self._run = self._begin()
        for entry in entries:
            new = {name: value for name, value in entry.values.items() if entry.step > self._last.get(name, -1)}
            if new:
                # Rows are numbered across attempts, so that none replaces another when they are synced.
                self._rows = max(self._rows, self._run.step)
                self._run.log({**new, STEP_METRIC: entry.step}, step=self._rows)
                self._rows += 1
                self._last.update(dict.fromkeys(new, entry.step))
        self._keep()

    def close(self, done: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if done else 1)

    def _begin(self) -> Any:
        about = self._about
        self._keep()  # before W&B makes the run: an attempt that is killed now causes no second run
        run = self._wandb.init(
            project=about.project, entity=about.entity, group=about.group, id=self._id, name=about.run_id,
            resume="allow", mode=about.mode, dir=str(about.folder), config=dict(about.config),
            settings=self._wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True,
                finish_timeout=LOCAL_TIMEOUT if about.mode == "offline" else CLOSE_TIMEOUT, **LIMITS,
            ),
        )  # fmt: skip
        for prefix in ("train", "eval", "result"):
            run.define_metric(f"{prefix}/*", step_metric=STEP_METRIC)
        run.config.update({f"launcher.{name}": value for name, value in about.tags.items()}, allow_val_change=True)
        return run

    def _keep(self) -> None:
        text = json.dumps({"id": self._id, "rows": self._rows, "last": self._last})
        safe_io.write(self._about.folder / WANDB_RUN, text + "\n", sync=False)


def _earlier(about: About) -> tuple[str, int, dict[str, int]]:
    try:
        kept = json.loads(unwrap(read_text(about.folder / WANDB_RUN)) or "")
        return str(kept["id"]), int(kept["rows"]), {str(name): int(step) for name, step in kept["last"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        # W&B cannot make a removed run again, hence the random part.
        name = re.sub(r"[^\w.+-]", "-", about.run_id)[:100]
        return f"{name}-{secrets.token_hex(4)}", 0, {}


_KNOWN: Mapping[str, Callable[[About], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


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
    folder, runs_dir = attempt.run.path, Path(plan.run_dir.removesuffix(plan.run_id))
    chosen, environ = plan.tracking, os.environ
    about = About(
        run_id=plan.run_id, folder=folder, experiment=chosen.experiment,
        uri=chosen.uri or environ.get("MLFLOW_TRACKING_URI") or (runs_dir / "mlflow").as_uri(),
        log_dir=Path(chosen.dir).expanduser() / plan.run_id if chosen.dir else folder / "tensorboard",
        project=chosen.project or environ.get("WANDB_PROJECT") or chosen.experiment,
        entity=chosen.entity or environ.get("WANDB_ENTITY"),
        mode=chosen.mode or environ.get("WANDB_MODE") or "offline",
        group=chosen.experiment if "/" in plan.run_id else None,
        config=flat_config(attempt.run.record().get("config", {})),
        tags={name: value for name, value in tags.items() if value},
    )  # fmt: skip
    local = {"tensorboard": True, "mlflow": about.uri.startswith("file:"), "wandb": about.mode == "offline"}
    make = {name: partial(_KNOWN[name], about) for name in plan.track}
    return TrackerQueues(make, [name for name in local if local[name]])
