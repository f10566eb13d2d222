"""The interface of trackers (TensorBoard, MLflow, W&B), and the data that they get."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Protocol

from launcher import bounds
from launcher.files.shared_files import read_text, unwrap

CLOSE_TIMEOUT = 5.0  # seconds to wait at the end for entries that have not reached a server
LOCAL_TIMEOUT = 60.0  # the same for trackers that write to files: on a busy node, their start alone takes longer


@dataclass(frozen=True)
class Entry:
    """Numbers reported together at one step."""

    step: int  # steps of the run that are done
    moment: float  # when they were reported, in seconds since the epoch
    values: Mapping[str, float]  # the numbers by name (`train/loss`)


def keep(path: Path, entries: Sequence[Entry]) -> None:
    """Appends entries that did not reach a tracker to its file in the run directory.

    Raises OSError: they cannot be written.
    Raises ValueError: the file would exceed `bounds.UNSENT_BYTES`.
    """
    data = "".join(json.dumps(astuple(entry)) + "\n" for entry in entries).encode()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab") as file:
        if file.tell() + len(data) > bounds.UNSENT_BYTES:
            raise ValueError(f"{path} has its {bounds.UNSENT_BYTES >> 20} MiB")
        file.write(data)


def kept(path: Path) -> list[Entry]:
    """Returns the entries in such a file in the order in which they were reported, each once.

    Raises LauncherError: the file cannot be read.
    """
    text = unwrap(read_text(path, bounds.UNSENT_BYTES)) or ""
    # A process may be killed while it writes.
    whole = dict.fromkeys(line for line in text.split("\n")[:-1] if line.endswith("]"))
    return sorted((Entry(*json.loads(line)) for line in whole), key=lambda entry: entry.moment)


@dataclass(frozen=True)
class About:
    """A run's description for trackers."""

    run_id: str  # run_id, attempt: the run's id, and the index of this attempt, from 0
    attempt: int
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

    def log(self, entries: Sequence[Entry]) -> None:
        """Writes entries, in order; the first call starts the tracker's run."""

    def close(self, done: bool) -> None:
        """Ends the tracker's run.

        done: whether the work of the run is complete; otherwise a later attempt may continue it.
        """
