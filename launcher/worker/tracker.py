"""What a tracker (TensorBoard, MLflow, W&B) is, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PATIENCE = 5.0  # seconds that the end of the work waits for what has not reached the trackers


@dataclass(frozen=True)
class Entry:
    """Numbers of one step; `moment` is in seconds since the epoch."""

    step: int
    moment: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run.

    Attributes:
        run_id, attempt: the run's id, and this attempt's number.
        folder: the run directory.
        experiment: name under which runs that belong together are kept.
        uri: MLflow's; empty: MLFLOW_TRACKING_URI, else the folder mlflow beside the run.
        log_dir: TensorBoard's.
        config: the config, flat (`workload.lr`).
        tags: what else is to be known (job, hosts, ...).
        project, entity, mode, group: W&B's; an empty entity or group is W&B's to choose.
    """

    run_id: str
    attempt: int
    folder: Path
    experiment: str
    uri: str
    log_dir: Path
    config: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    entity: str | None = None
    mode: str = "offline"
    group: str | None = None


class Tracker(Protocol):
    """One kind of tracker. All its methods are called in one thread, and may raise anything."""

    def log(self, entries: Sequence[Entry]) -> None:
        """Takes entries, in order; the first call tells it that there is something to track."""

    def close(self, done: bool) -> None:
        """No more will come; `done`: the work has come to its end."""
