"""Where metrics go besides the run: MLflow, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launcher import bounds
from launcher.files import run_files
from launcher.files.shared_files import read_text, unwrap

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


CLOSE_TIMEOUT = 5.0  # seconds to wait at the end for entries that have not reached a server
LOCAL_TIMEOUT = 60.0  # the same for trackers that write to files: on a busy node, their start alone takes longer


@dataclass(frozen=True)
class TrackerEntry:
    """Numbers reported together at one step."""

    step: int  # steps of the run that are done
    moment: float  # when they were reported, in seconds since the epoch
    values: Mapping[str, float]  # the numbers by name (`train/loss`)


def keep(path: Path, entries: Sequence[TrackerEntry]) -> None:
    """Appends entries that did not reach a tracker to its file; raises OSError, or ValueError above UNSENT_BYTES."""
    lines = "".join(json.dumps(astuple(entry)) + "\n" for entry in entries)
    if (path.stat().st_size if path.exists() else 0) + len(lines) > bounds.UNSENT_BYTES:
        raise ValueError(f"{path} has its {bounds.UNSENT_BYTES >> 20} MiB")
    run_files.append(path, lines)


def kept(path: Path) -> list[TrackerEntry]:
    """Returns such a file's entries as they were reported, each once; raises LauncherError."""
    text = unwrap(read_text(path, bounds.UNSENT_BYTES)) or ""
    # A process may be killed while it writes.
    whole = dict.fromkeys(line for line in text.split("\n")[:-1] if line.endswith("]"))
    return sorted((TrackerEntry(*json.loads(line)) for line in whole), key=lambda entry: entry.moment)


@dataclass(frozen=True)
class About:
    """A run's description for trackers."""

    run_id: str
    attempt: int  # index of this attempt, from 0
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


class Tracker(Protocol):
    """The interface of a tracker. All methods are called in one thread, and may raise any exception."""

    def log(self, entries: Sequence[TrackerEntry]) -> None:
        """Writes entries, in order; the first call starts the tracker's run."""

    def close(self, done: bool) -> None:
        """Ends the tracker's run; unless `done`, a later attempt may continue it."""


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
            for name, value in entry.values.items()
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
            run_files.write(self._about.folder / MLFLOW_RUN, f"{self._about.uri} {run}\n")
            all_of_them = [self._entities.Param(name, value[:LONGEST]) for name, value in self._about.config.items()]
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
        try:
            uri, _, run = (self._about.folder / MLFLOW_RUN).read_text().strip().rpartition(" ")
        except OSError:
            return None
        if uri != self._about.uri:  # another server
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
        run_files.make_folder(about.log_dir)
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
STEP = "step"  # the metric on W&B's horizontal axis
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
                self._run.log({**new, STEP: entry.step}, step=self._rows)
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
            run.define_metric(f"{prefix}/*", step_metric=STEP)
        run.config.update({f"launcher.{name}": value for name, value in about.tags.items()}, allow_val_change=True)
        return run

    def _keep(self) -> None:
        text = json.dumps({"id": self._id, "rows": self._rows, "last": self._last})
        run_files.write(self._about.folder / WANDB_RUN, text + "\n", sync=False)


def _earlier(about: About) -> tuple[str, int, dict[str, int]]:
    try:
        kept = json.loads(unwrap(read_text(about.folder / WANDB_RUN)) or "")
        return str(kept["id"]), int(kept["rows"]), {str(name): int(step) for name, step in kept["last"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        # W&B cannot make a removed run again, hence the random part.
        name = re.sub(r"[^\w.+-]", "-", about.run_id)[:100]
        return f"{name}-{secrets.token_hex(4)}", 0, {}
