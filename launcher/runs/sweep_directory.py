"""The sweep directory: manifest, points and submitted arrays. Only this module reads and writes their format.

    SWEEP/                  0700, files 0600
      sweep.json            the manifest: the overrides of all points, those that they share once; by the submitter
      journal.jsonl         which points were submitted in which array
      arrays/TOKEN          the points of an array, one per line: element N is line N + 1
      arrays/TOKEN.sh       the array's job script; the output files of its elements are beside it, points link to them
      environment.sh        on PBS: the submitter's environment that the jobs inherit
      code/                 with env.snapshot: the code that the points execute
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
from typing import Any

from launcher import bounds
from launcher.config.hydra_text import key_of
from launcher.errors import ConfigError, RunError
from launcher.files import ownership, run_files
from launcher.files.json_types import from_json, misfit
from launcher.files.shared_files import exists, read_json, read_text, unwrap
from launcher.formatting import long_size, ranges
from launcher.runs import directory, event_file, events, live_index
from launcher.runs.directory import Run
from launcher.runs.events import Event, Refused, Submitted, Submitting, every
from launcher.runs.search_record import SearchRecord, too_many
from launcher.units import parse_ranges

FORMAT = 2  # version of the manifest's format; format 1 has no `common`, and all overrides of each point
RECORD = "sweep.json"
# Keys of a single command: a change of them makes neither a new sweep nor a new point.
COMMAND_KEYS = (
    "wait", "submit", "dry_run", "confirm_above", "run_id", "runs_dir",
)  # fmt: skip


@dataclass(frozen=True)
class Packing:
    """How the points of a packed sweep share pilots. A pilot is a job in which slot managers run points."""

    pilots: int  # number of pilots; each is one job
    nodes: int  # number of nodes of each pilot
    slots: int  # number of points that run at once on each node
    gpus: int  # number of GPUs of each node, which its slots share
    gpus_per_point: int
    cpus_per_point: int
    retries: int  # how often a failed point is retried
    lease: float  # seconds without a heartbeat after which a slot manager's points are taken over

    @property
    def at_once(self) -> int:
        """Number of points that run at once in all pilots."""
        slots = min(self.slots, self.gpus // self.gpus_per_point) if self.gpus_per_point else self.slots
        return self.pilots * self.nodes * slots


@dataclass(frozen=True)
class Manifest:
    """The content of sweep.json; `common` has what all points override at the same place, else null."""

    name: str  # name of the runs (config key `name`)
    command: tuple[str, ...]  # arguments of the command line that made the sweep, without the values of secrets
    # overrides of each point; point N has index N. In a search, the points that were chosen so far
    points: tuple[tuple[str, ...], ...]
    objective: tuple[str, ...] = ()  # names of the metrics by which points are compared
    best_is: str = "max"  # which value of the first metric is best: max or min
    parallelism: int | None = None  # number of points that may run at once; None: no limit but the site's
    packing: Packing | None = None  # how points share pilots; None: each point has a job of its own
    # whether points are chosen while the sweep runs; they are then in the search's journal, not in this file
    search: bool = False


def element_id(array_id: str, index: int) -> str:
    """Returns submitit's id of a job array's element: 150_5 for Slurm's 150, 150.pbs-srv_5 for PBS's 150[].pbs-srv."""
    return f"{array_id.replace('[]', '')}_{index}"


@dataclass(frozen=True)
class Submission:
    """The submission of points as one job array."""

    token: str  # token by which the scheduler finds the array
    points: tuple[int, ...]  # numbers of the points; element N of the array is `points[N]`
    time: float  # time of the submission, in seconds since the epoch
    job: str | None = None  # id of the array's job; None: not known yet
    by_hand: bool = False  # whether the user submits it (submit=false)

    def job_of(self, point: int) -> str | None:
        """Returns the job id of a point, by the point's number; None: the array's job id is not known yet."""
        if self.job is None:
            return None
        return element_id(self.job, self.points.index(point))


@dataclass(frozen=True)
class Point:
    """One combination of a sweep's overrides, and its run; the run's directory may not exist yet."""

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
        """Makes a sweep directory unless it exists; ConfigError: it cannot; RunError: others can write to it."""
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
        """Returns whether the sweep's manifest exists. Raises UnavailableError: the directory cannot be read now."""
        return unwrap(exists(self.path / RECORD))

    def write(self, manifest: Manifest) -> None:
        """Writes the manifest atomically, without the points of a search; raises ConfigError as `text_of`."""
        run_files.write(self.path / RECORD, text_of(manifest))

    def manifest(self) -> Manifest:
        """Returns the manifest, with the points of a search that were chosen so far.

        Raises RunError: there is no manifest, it is damaged, or another version of the launcher wrote it.
        """
        found = unwrap(read_json(self.path / RECORD, bounds.SWEEP_BYTES))
        if found is None and not self.recorded():
            raise RunError(f"{self.path} is not a sweep: it has no {RECORD}")
        if not isinstance(found, dict) or "format" not in found:
            raise RunError(f"{self.path}/{RECORD} cannot be read: it is no manifest of a sweep")
        common = found.pop("common", [])
        if found.pop("format") not in (1, FORMAT):
            raise RunError(f"{self.path}/{RECORD} was written by another version of the launcher")
        wrong = _overfull(common, found.get("points"))  # before each point is looked at
        wrong = wrong or misfit(found, Manifest, RECORD) or misfit(common, tuple[str | None, ...], "common")
        if wrong:
            raise RunError(f"{self.path}/{RECORD} cannot be read: {wrong}")
        try:
            points = tuple([_whole(common, own) for own in found["points"]])
        except StopIteration:
            raise RunError(f"{self.path}/{RECORD} cannot be read: a point lacks overrides") from None
        manifest: Manifest = from_json({**found, "points": []}, Manifest)
        if manifest.search:
            points = tuple(canonical(each.overrides) for each in SearchRecord(self.path).journal().trials)
        return replace(manifest, points=points)

    def points(self) -> list[Point]:
        """Returns all points, sorted by their numbers."""
        return [Point(index, each, self.run(index)) for index, each in enumerate(self.manifest().points)]

    def run(self, index: int) -> Run:
        return Run(self.path / str(index))

    def pilot(self, number: int) -> Run:
        """Returns the run of a pilot; its directory SWEEP-pilot-NUMBER is next to the sweep's."""
        return Run(self.path.with_name(f"{self.id}-pilot-{number}"))

    def journal(self, event: Event) -> None:
        """Appends an event to the submitter's journal, and waits until it is on disk."""
        if isinstance(event, Submitting):
            live_index.add(self.path)
        event_file.append(self.path / "journal.jsonl", event, sync=True)

    def submitting(self, token: str, points: Sequence[int], *, by_hand: bool = False) -> None:
        """Records in the journal that points are about to be submitted as one array with this token."""
        self.journal(Submitting(token=token, points=ranges(points), by_hand=by_hand))

    def submitted(self, token: str, job: str) -> None:
        """Records in the journal the job id of the array with this token."""
        self.journal(Submitted(token=token, job=job))

    def refused(self, token: str, error: str | None = None) -> None:
        """Records that this array has no job; error=None: the submitter was killed before the scheduler accepted it."""
        self.journal(Refused(token=token, error=error))

    def tokens(self) -> set[str]:
        """Returns the tokens of all arrays whose submission was ever started."""
        return {event.token for event in every(event_file.read(self.path / "journal.jsonl"), Submitting)}

    def submissions(self) -> list[Submission]:
        """Returns the arrays that were submitted, oldest first; unconfirmed ones have no job id."""
        found: dict[str, Submission] = {}
        for event in events.known(event_file.read(self.path / "journal.jsonl")):
            if isinstance(event, Submitting):
                try:
                    points = _parse_points(event.points or "")
                except ValueError as error:
                    raise RunError(f"{self.path}/journal.jsonl cannot be read: {error}") from None
                found[event.token] = Submission(event.token, points, event.time, by_hand=event.by_hand)
            elif isinstance(event, (Submitted, Refused)):
                before = found.pop(event.token or "", None)
                if before and isinstance(event, Submitted):
                    found[before.token] = Submission(before.token, before.points, event.time, event.job)
        return list(found.values())

    def request_local(self, points: Sequence[int], *, restart: bool) -> None:
        """Adds a request to run points on this machine. restart: whether points that have run before are run again."""
        live_index.add(self.path)
        since = time.time() if restart else 0.0
        with open(os.open(self.path / "points", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(f"{since} {ranges(points)}\n")

    def local_requests(self) -> dict[int, float]:
        """Returns the points that this machine is to start, with the time of the request (since the epoch), by time.

        A point is to be started unless it has been started since.
        """
        lines = (unwrap(read_text(self.path / "points")) or "").split("\n")[:-1]  # an incomplete line may still grow
        requested: dict[int, float] = {}
        for since, _, points in (line.partition(" ") for line in lines):
            with contextlib.suppress(ValueError):  # a damaged line
                requested.update((i, max(float(since), requested.get(i, 0.0))) for i in _parse_points(points))
        return requested

    def cancelled(self) -> bool:
        """Returns whether the sweep is marked as cancelled: points that have not started must not start."""
        return unwrap(exists(self.path / "cancelled"))

    def mark_cancelled(self, cancelled: bool) -> None:
        """Makes (True) or removes (False) the sweep's mark `cancelled`; see `cancelled`."""
        if cancelled:
            (self.path / "cancelled").touch(mode=0o600)
        else:
            (self.path / "cancelled").unlink(missing_ok=True)


def text_of(manifest: Manifest) -> str:
    """Returns the manifest's text; raises ConfigError for more or longer points than can be read again."""
    points = () if manifest.search else manifest.points
    common = [column[0] if len(set(column)) == 1 else None for column in zip(*points, strict=False)]
    own = [
        [*(each for each, shared in zip(point, common, strict=False) if shared is None), *point[len(common) :]]
        for point in points
    ]
    text = json.dumps({"format": FORMAT, **asdict(replace(manifest, points=())), "common": common, "points": own})
    wrong = _overfull(common, own)
    if (size := len(text)) > bounds.SWEEP_BYTES:
        most = long_size(bounds.SWEEP_BYTES)
        wrong = f"the overrides in which its points differ have {long_size(size)}, and {most} are read"
    if wrong:
        raise ConfigError(f"the sweep could not be read again: {wrong}: divide it into several sweeps")
    return text


def _overfull(common: Any, own: Any) -> str | None:
    if not isinstance(common, list) or not isinstance(own, list):
        return None
    shared = sum(each is not None for each in common) * len(own)
    return too_many(len(own), shared + sum(len(each) for each in own if isinstance(each, list)))


def _whole(common: Sequence[str | None], own: Sequence[str]) -> tuple[str, ...]:
    left = iter(own)
    return (*[next(left) if shared is None else shared for shared in common], *left)


def canonical(overrides: Iterable[str]) -> tuple[str, ...]:
    """Returns the overrides that identify a point, sorted by key: without COMMAND_KEYS and keys of the sweep.

    Those of the same key keep their order, because the last one wins; all do if one sets a section (`train={...}`).
    """
    kept = [
        each
        for each in overrides
        if key_of(each) not in COMMAND_KEYS and not key_of(each).startswith(("sweep.", "hydra"))
    ]
    sections = any(each.partition("=")[2].startswith("{") for each in kept)
    return tuple(kept if sections else sorted(kept, key=key_of))


def differing(points: Sequence[Sequence[str]]) -> list[str]:
    """Returns the keys in which points differ, in the order in which they first appear."""
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
    """Returns the values that a point's overrides set for these keys, as the user wrote them; others are left out."""
    own = {key_of(each): each.partition("=")[2] for each in overrides}
    return {key: own[key] for key in keys if key in own}


def label(overrides: Sequence[str], keys: Sequence[str]) -> str:
    """Returns the values that a point's overrides set for these keys as text, such as `lr=0.1 seed=3`."""
    shown: Mapping[str, str] = values_of(overrides, keys)
    return " ".join(f"{key.removeprefix('workload.')}={value}" for key, value in shown.items())


def _parse_points(text: str) -> tuple[int, ...]:
    return parse_ranges(text, bounds.SWEEP_POINTS) if text else ()


def require_known(points: Iterable[int], sweep: Sweep, count: int) -> None:
    """Checks that a sweep has points with these numbers. Raises RunError: a number is not between 0 and `count - 1`."""
    for index in points:
        if not 0 <= index < count:
            raise RunError(f"sweep {sweep.id} has points 0 to {count - 1}, and no {index}")


def sweep_of(run: Run) -> Sweep | None:
    """Returns the sweep of which a run is a point; None: the run is not a point."""
    sweep = Sweep(run.path.parent)
    return sweep if run.is_point and sweep.recorded() else None
