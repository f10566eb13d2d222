"""The directory of a sweep: the one place that reads and writes its format.

    SWEEP/                  0700, files 0600
      sweep.json            its points, each with its overrides; written by the submitter
      journal.jsonl         which points were submitted in which array
      arrays/TOKEN          the points of an array, one per line: element N is line N + 1
      arrays/TOKEN.sh       the array's script; outputs of its elements are beside it, and points link to them
      environment.sh        on PBS: the submitter's environment that the jobs inherit
      code/                 with env.snapshot: the code that its points run
      points                requests to run points on this machine (launcher/sweeps/local_points.py)
      claims/, managers/    of a packed sweep: which pilot runs which point (launcher/runs/claims.py)
      cancelled             points that have not started must not start
      N/                    point N, a run like any other (launcher/runs/directory.py); its id is SWEEP/N

Works without torch, hydra and submitit.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.config.hydra_text import key_of
from launcher.errors import ConfigError, RunError
from launcher.files import ownership, run_files
from launcher.files.json_types import from_json, misfit
from launcher.files.shared_files import exists, read_json, read_text, unwrap
from launcher.formatting import ranges
from launcher.runs import directory, event_file, event_json, live_index
from launcher.runs.directory import Run
from launcher.runs.event_json import Event
from launcher.runs.events import Refused, Submitted, Submitting, every
from launcher.runs.search_record import SearchRecord
from launcher.units import parse_ranges

FORMAT = 1
RECORD = "sweep.json"
MOST_POINTS = 1_000_000
# Keys that belong to a single command: they do not make another sweep or another point.
COMMAND_KEYS = (
    "wait", "dry_run", "confirm_above", "run_id", "runs_dir",
    "hydra.sweeper.n_trials", "hydra.sweeper.n_jobs", "hydra.sweeper.max_failure_rate",  # may change in a search
)  # fmt: skip


@dataclass(frozen=True)
class Packing:
    """How points of a packed sweep share pilots.

    Attributes:
        pilots: number of pilots, each with a job of its own.
        nodes: nodes of each pilot.
        slots: points that run at once on each node, or on each group of nodes.
        gpus: GPUs of each node, which the slots share.
        gpus_per_point, cpus_per_point: what a point asks for on its node.
        retries: how often a point that has failed is retried.
        lease: seconds without a heartbeat after which the points of a slot manager are taken over.
        nodes_per_point: nodes that a point needs: a pilot has groups of so many.
    """

    pilots: int
    nodes: int
    slots: int
    gpus: int
    gpus_per_point: int
    cpus_per_point: int
    retries: int
    lease: float
    nodes_per_point: int = 1

    @property
    def at_once(self) -> int:
        """Points that run at once in all pilots."""
        return self.pilots * (self.nodes // self.nodes_per_point) * self.slots


@dataclass(frozen=True)
class Manifest:
    """The content of sweep.json.

    Attributes:
        name: name of the runs.
        command: overrides of the command that made the sweep.
        points: overrides of each point, in the order of their numbers.
        objective: metrics by which points are compared.
        best_is: which value of the first metric is the best: max or min.
        parallelism: number of points that may run at once; None: as many as the site lets.
        search: whether its points are chosen while it runs: `points` are those so far, which the search's journal has.
        packing: how points share pilots; None: each point has a job of its own.
    """

    name: str
    command: tuple[str, ...]
    points: tuple[tuple[str, ...], ...]
    objective: tuple[str, ...] = ()
    best_is: str = "max"
    parallelism: int | None = None
    packing: Packing | None = None
    search: bool = False


def element_id(array_id: str, index: int) -> str:
    """Returns submitit's id of an array's element: 150_5 for Slurm's 150, 150.pbs-srv_5 for PBS's 150[].pbs-srv."""
    return f"{array_id.replace('[]', '')}_{index}"


@dataclass(frozen=True)
class Submission:
    """The points of one array; `job` is the array's id, None while it is unknown."""

    token: str
    points: tuple[int, ...]
    time: float
    job: str | None = None

    def job_of(self, point: int) -> str | None:
        """Returns the job id of a point; None: the array's is unknown."""
        if self.job is None:
            return None
        return element_id(self.job, self.points.index(point))


@dataclass(frozen=True)
class Point:
    """One combination of a sweep's overrides, with its run, whose directory may not exist yet."""

    index: int
    overrides: tuple[str, ...]
    run: Run


@dataclass(frozen=True)
class Sweep:
    """One sweep's directory."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path) -> Sweep:
        """Makes the directory, unless it exists.

        Raises:
            ConfigError: the directory cannot be made, or is a run's.
            RunError: others can write to the directory.
        """
        if unwrap(exists(path / "record.json")):
            raise ConfigError(f"{path} is a run: choose another sweep.id")
        ownership.require_safe_way(path.parent, f"runs_dir={path.parent}")
        try:
            run_files.make_folder(path)
            (path / "arrays").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"runs_dir={path.parent}: a sweep's directory cannot be made there ({error.strerror}): set runs_dir to "
                "a folder that you can write to and that all nodes share"
            ) from None
        directory.require_private(path)
        return cls(path)

    def recorded(self) -> bool:
        """Whether its manifest exists.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        return unwrap(exists(self.path / RECORD))

    def write(self, manifest: Manifest) -> None:
        """Writes the manifest atomically; of a search without the points."""
        manifest = replace(manifest, points=()) if manifest.search else manifest
        run_files.write(self.path / RECORD, json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1))

    def manifest(self) -> Manifest:
        """Returns the manifest.

        Raises:
            UnavailableError: the manifest cannot be read now.
            RunError: there is no manifest, it is damaged, or another version wrote it.
        """
        found = unwrap(read_json(self.path / RECORD))
        if found is None and not self.recorded():
            raise RunError(f"{self.path} is not a sweep: it has no {RECORD}")
        if not isinstance(found, dict) or "format" not in found:
            raise RunError(f"{self.path}/{RECORD} cannot be read: it is no manifest of a sweep")
        values = {key: each for key, each in found.items() if key != "format"}
        if found["format"] != FORMAT:
            raise RunError(f"{self.path}/{RECORD} was written by another version of the launcher")
        if wrong := misfit(values, Manifest, RECORD):
            raise RunError(f"{self.path}/{RECORD} cannot be read: {wrong}")
        manifest: Manifest = from_json(values, Manifest)
        if manifest.search:
            points = tuple(canonical(each.overrides) for each in SearchRecord(self.path).journal().trials)
            return replace(manifest, points=points)
        return manifest

    def points(self) -> list[Point]:
        """Returns all points, sorted by their numbers."""
        return [Point(index, each, self.run(index)) for index, each in enumerate(self.manifest().points)]

    def run(self, index: int) -> Run:
        return Run(self.path / str(index))

    def pilot(self, number: int) -> Run:
        """Returns the run of a pilot, which is beside the sweep."""
        return Run(self.path.with_name(f"{self.id}-pilot-{number}"))

    def journal(self, event: Event) -> None:
        """Appends to the submitter's journal and waits until it is on disk."""
        if isinstance(event, Submitting):
            live_index.add(self.path)
        event_file.append(self.path / "journal.jsonl", event, sync=True)

    def submitting(self, token: str, points: Sequence[int]) -> None:
        """Writes to the journal that points are about to be submitted as an array."""
        self.journal(Submitting(token=token, points=ranges(points)))

    def submitted(self, token: str, job: str) -> None:
        """Writes the job id of an array to the journal."""
        self.journal(Submitted(token=token, job=job))

    def refused(self, token: str, error: str | None = None) -> None:
        """Writes to the journal that an array was refused, with the scheduler's message."""
        self.journal(Refused(token=token, error=error))

    def tokens(self) -> set[str]:
        """Returns the tokens of all arrays whose submission was ever begun."""
        return {event.token for event in every(event_file.read(self.path / "journal.jsonl"), Submitting)}

    def submissions(self) -> list[Submission]:
        """Returns the arrays that were submitted, in order, with those whose job is not known yet."""
        found: dict[str, Submission] = {}
        for event in event_json.known(event_file.read(self.path / "journal.jsonl")):
            if isinstance(event, Submitting):
                try:
                    found[event.token] = Submission(event.token, _parse_points(event.points or ""), event.time)
                except ValueError as error:
                    raise RunError(f"{self.path}/journal.jsonl cannot be read: {error}") from None
            elif isinstance(event, (Submitted, Refused)):
                before = found.pop(event.token or "", None)
                if before and isinstance(event, Submitted):
                    found[before.token] = Submission(before.token, before.points, event.time, event.job)
        return list(found.values())

    def request_local(self, points: Sequence[int], *, restart: bool) -> None:
        """Adds a request to run points on this machine; with `restart`, also points that have run before."""
        live_index.add(self.path)
        since = time.time() if restart else 0.0
        with open(os.open(self.path / "points", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(f"{since} {ranges(points)}\n")

    def local_requests(self) -> dict[int, float]:
        """Returns the points to run on this machine, in order, each with the time before which its starts do not count.

        Times are in seconds since the epoch.

        Raises:
            UnavailableError: the file cannot be read now.
        """
        lines = (unwrap(read_text(self.path / "points")) or "").split("\n")[:-1]  # an incomplete line may still grow
        requested: dict[int, float] = {}
        for since, _, points in (line.partition(" ") for line in lines):
            with contextlib.suppress(ValueError):  # a damaged line
                requested.update((i, max(float(since), requested.get(i, 0.0))) for i in _parse_points(points))
        return requested

    def cancelled(self) -> bool:
        """Whether points that have not started must not start.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        return unwrap(exists(self.path / "cancelled"))

    def mark_cancelled(self, cancelled: bool) -> None:
        """Makes or removes the mark `cancelled`: points that have not started must not start."""
        if cancelled:
            (self.path / "cancelled").touch(mode=0o600)
        else:
            (self.path / "cancelled").unlink(missing_ok=True)


def canonical(overrides: Iterable[str]) -> tuple[str, ...]:
    """Returns the overrides that identify a point: without those of the command, sorted by key. Pure.

    Overrides of the same key keep their order, because the last one wins; if whole sections are set, all keep it.
    """
    kept = [
        each
        for each in overrides
        if key_of(each) not in COMMAND_KEYS and not key_of(each).startswith(("sweep.", "hydra"))
    ]
    sections = any(each.partition("=")[2].startswith("{") for each in kept)
    return tuple(kept if sections else sorted(kept, key=key_of))


def differing(points: Sequence[Sequence[str]]) -> list[str]:
    """Returns the keys in which points differ, in the order of their first appearance. Pure."""
    values: dict[str, set[str | None]] = {}
    for overrides in points:
        for each in overrides:
            values.setdefault(key_of(each), set())
    for overrides in points:
        own = {key_of(each): each.partition("=")[2] for each in overrides}
        for key, found in values.items():
            found.add(own.get(key))
    return [key for key, found in values.items() if len(found) > 1]


def values_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns a point's values of these keys as the user wrote them; keys that it does not set are left out. Pure."""
    own = {key_of(each): each.partition("=")[2] for each in overrides}
    return {key: own[key] for key in keys if key in own}


def label(overrides: Sequence[str], keys: Sequence[str]) -> str:
    """Returns a point's values of these keys as text, such as `lr=0.1 seed=3`. Pure."""
    shown: Mapping[str, str] = values_of(overrides, keys)
    return " ".join(f"{key.removeprefix('workload.')}={value}" for key, value in shown.items())


def _parse_points(text: str) -> tuple[int, ...]:
    return parse_ranges(text, MOST_POINTS) if text else ()


def require_known(points: Iterable[int], sweep: Sweep, count: int) -> None:
    """Checks the numbers of points of a sweep that has `count` points.

    Raises:
        RunError: the sweep has no such point.
    """
    for index in points:
        if not 0 <= index < count:
            raise RunError(f"sweep {sweep.id} has points 0 to {count - 1}, and no {index}")


def sweep_of(run: Run) -> Sweep | None:
    """Returns the sweep that this run is a point of; None: it is no point.

    Raises:
        UnavailableError: the parent folder cannot be read now.
    """
    sweep = Sweep(run.path.parent)
    return sweep if run.is_point and sweep.recorded() else None
