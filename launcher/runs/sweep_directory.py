"""The sweep directory: manifest, points and submitted arrays. Only this module reads and writes their format.

    SWEEP/                  0700, files 0600
      sweep.json            the manifest: the overrides of all points, those that they share once; by the submitter
      journal.jsonl         which points were submitted in which array
      arrays/TOKEN          the points of an array, one per line: element N is line N + 1
      arrays/TOKEN.sh       the array's job script; the output files of its elements are beside it, points link to them
      arrays/TOKEN.environment.sh   on PBS: the submitter's environment that the array's jobs inherit
      code/                 with env.snapshot: the code that the points execute
      points                requests to run points on this machine (launcher/sweeps/local_runner.py)
      claims/, managers/    of a packed sweep: which pilot runs which point (launcher/runs/point_claims.py)
      search/               of a search:
        settings.json       what is searched, and how; written by the submitter
        template.json       from which the record of each point is made (launcher/search/point_template.py)
        journal.jsonl       Optuna's journal of all trials; written by the jobs (launcher/search/search.py)
        lock                held during each operation on the journal (launcher/search/search.py)
      cancelled             points that have not started must not start
      N/                    point N, a run like any other (launcher/runs/directory.py); its id is SWEEP/N

Works without torch, hydra and submitit.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher import io_bounds
from launcher.config.overrides import key_of
from launcher.config.search_space import Dimension, Goal, Method
from launcher.errors import ConfigError, NoRunError, RunError
from launcher.fast_dataclasses import Struct
from launcher.files import safe_io
from launcher.files.json_types import as_json, from_json, misfit
from launcher.files.retried_reads import exists, read_bytes, read_json, read_text, retry_read, unwrap
from launcher.formatting import long_size, ranges
from launcher.runs import directory, event_files, events, live_runs_index
from launcher.runs.directory import Run
from launcher.runs.events import Event, Refused, Submitted, Submitting, every
from launcher.units import parse_ranges

FORMAT = 2  # version of the manifest's format
RECORD = "sweep.json"
PILOT = "-pilot-"  # between the id of a sweep and the number of its pilot
# Keys of a single command: a change of them makes neither a new sweep nor a new point.
COMMAND_KEYS = ("wait", "submit", "dry_run", "confirm_above", "run_id", "runs_dir")


class Packing(Struct):
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
        slots = min(self.slots, self.gpus // self.gpus_per_point) if self.gpus_per_point else self.slots
        return self.pilots * self.nodes * slots


class SweepManifest(Struct):
    """The content of sweep.json; `common` has what all points override at the same place, else null."""

    name: str  # name of the runs (config key `name`)
    command: tuple[str, ...]  # arguments of the command line that made the sweep, without the values of secrets
    points: tuple[tuple[str, ...], ...]  # overrides of each point; in a search, of those that were chosen so far
    objective: tuple[str, ...] = ()  # names of the metrics by which points are compared
    best_is: str = "max"  # which value of the first metric is best: max or min
    parallelism: int | None = None  # number of points that may run at once; None: no limit but the site's
    packing: Packing | None = None  # how points share pilots; None: each point has a job of its own
    search: bool = False  # whether points are chosen while the sweep runs; they are in the search's journal


def element_id(array_id: str, index: int) -> str:
    """Returns submitit's id of a job array's element: 150_5 for Slurm's 150, 150.pbs-srv_5 for PBS's 150[].pbs-srv."""
    return f"{array_id.replace('[]', '')}_{index}"


class Submission(Struct):
    token: str  # token by which the scheduler finds the array
    points: tuple[int, ...]  # numbers of the points; element N of the array is `points[N]`
    time: float  # time of the submission, in seconds since the epoch
    job: str | None = None  # id of the array's job; None: not known yet
    by_hand: bool = False  # whether the user submits it (submit=false)


class Point(Struct):
    """One combination of a sweep's overrides, and its run; the run's directory may not exist yet."""

    index: int
    overrides: tuple[str, ...]
    run: Run


class Sweep(Struct):
    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, path: Path) -> Sweep:
        """Makes a sweep directory unless it exists; ConfigError: it cannot; RunError: others can write to it."""
        if unwrap(exists(path / "record.json")):
            raise ConfigError(f"{path} is a run: choose another sweep.id")
        with directory.making_in(path.parent):
            safe_io.make_folder(path)
            (path / "arrays").mkdir(mode=0o700, exist_ok=True)
        directory.require_private(path)
        return cls(path)

    def recorded(self) -> bool:
        return unwrap(exists(self.path / RECORD))

    def write(self, manifest: SweepManifest) -> None:
        """Writes the manifest atomically, without the points of a search; raises ConfigError as `text_of`."""
        safe_io.write(self.path / RECORD, text_of(manifest))

    def manifest(self) -> SweepManifest:
        """Returns the manifest, with the points of a search that were chosen so far.

        Raises RunError: there is no manifest, it is damaged, or another version of the launcher wrote it.
        """
        manifest = self._manifest()
        if not manifest.search:
            return manifest
        trials = SearchRecord(self.path).journal().trials
        return replace(manifest, points=tuple(canonical(each.overrides) for each in trials))

    def packing(self) -> Packing | None:
        """Returns how the points share pilots; of a search, without a look at its points."""
        return self._manifest().packing

    def _manifest(self) -> SweepManifest:
        record = self.path / RECORD
        if (version := _version(record)) is None:
            raise RunError(f"{self.path} is not a sweep: it has no {RECORD}")
        return _manifest(record, version)

    def points(self) -> list[Point]:
        return [Point(index, each, self.run(index)) for index, each in enumerate(self.manifest().points)]

    def run(self, index: int) -> Run:
        return Run(self.path / str(index))

    def pilot(self, number: int) -> Run:
        """Returns the run of a pilot; its directory SWEEP-pilot-NUMBER is next to the sweep's."""
        return Run(self.path.with_name(f"{self.id}{PILOT}{number}"))

    def journal(self, event: Event) -> None:
        """Appends an event to the submitter's journal, and waits until it is on disk."""
        if isinstance(event, Submitting):
            live_runs_index.add(self.path)
        event_files.append(self.path / "journal.jsonl", event, sync=True)

    def submitting(self, token: str, points: Sequence[int], *, by_hand: bool = False) -> None:
        self.journal(Submitting(token=token, points=ranges(points), by_hand=by_hand))

    def submitted(self, token: str, job: str) -> None:
        self.journal(Submitted(token=token, job=job))

    def refused(self, token: str, error: str | None = None) -> None:
        """Records that this array has no job; error=None: the submitter was killed before the scheduler accepted it."""
        self.journal(Refused(token=token, error=error))

    def tokens(self) -> set[str]:
        """Returns the tokens of all arrays whose submission was ever started."""
        return {event.token for event in every(event_files.read(self.path / "journal.jsonl"), Submitting)}

    def submissions(self) -> list[Submission]:
        """Returns the arrays that were submitted, oldest first; unconfirmed ones have no job id."""
        found: dict[str, Submission] = {}
        for event in events.known(event_files.read(self.path / "journal.jsonl")):
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
        live_runs_index.add(self.path)
        since = time.time() if restart else 0.0
        safe_io.append(self.path / "points", f"{since} {ranges(points)}\n", sync=True)

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
        if cancelled:
            (self.path / "cancelled").touch(mode=0o600)
        else:
            (self.path / "cancelled").unlink(missing_ok=True)


def _version(path: Path) -> tuple[int, ...] | None:
    # Another one once the file has changed; None: there is no file
    def look() -> tuple[int, ...]:
        with safe_io.open_regular(path) as file:  # opened, since NFS shows old facts about a file that is not
            status = os.fstat(file.fileno())
        return status.st_ino, status.st_mtime_ns, status.st_size

    return unwrap(retry_read(look, path))


@lru_cache(maxsize=1)
def _manifest(path: Path, _: tuple[int, ...]) -> SweepManifest:
    # Cached for a version, since that of 100,000 points takes a second; so is the journal of a search
    found = unwrap(read_json(path, io_bounds.SWEEP_BYTES))
    if not isinstance(found, dict) or "format" not in found:
        raise RunError(f"{path} cannot be read: it is no manifest of a sweep")
    if found.pop("format") != FORMAT:
        raise RunError(f"{path} was written by another version of the launcher")
    common = found.pop("common", None)
    wrong = _overfull(common, found.get("points"))  # before each point is looked at
    wrong = wrong or misfit(found, SweepManifest, RECORD) or misfit(common, tuple[str | None, ...], "common")
    if wrong:
        raise RunError(f"{path} cannot be read: {wrong}")
    try:
        points = tuple([_whole(common, own) for own in found["points"]])
    except StopIteration:
        raise RunError(f"{path} cannot be read: a point lacks overrides") from None
    return replace(from_json({**found, "points": []}, SweepManifest), points=points)


def text_of(manifest: SweepManifest) -> str:
    """Returns the manifest's text; raises ConfigError for more or longer points than can be read again."""
    points = () if manifest.search else manifest.points
    common = [column[0] if len(set(column)) == 1 else None for column in zip(*points, strict=False)]
    own = [
        [*(each for each, shared in zip(point, common, strict=False) if shared is None), *point[len(common) :]]
        for point in points
    ]
    text = json.dumps({"format": FORMAT, **asdict(replace(manifest, points=())), "common": common, "points": own})
    wrong = _overfull(common, own)
    if (size := len(text)) > io_bounds.SWEEP_BYTES:
        most = long_size(io_bounds.SWEEP_BYTES)
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


def differing(points: Iterable[Sequence[str]]) -> list[str]:
    """Returns the keys in which points differ, in the order in which they first appear."""
    values = [_values(overrides) for overrides in points]
    keys = dict.fromkeys(key for own in values for key in own)
    return [key for key in keys if len({own.get(key) for own in values}) > 1]


def _values(overrides: Iterable[str]) -> dict[str, str]:
    return {key_of(each): each.partition("=")[2] for each in overrides}


def values_of(overrides: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Returns the values that a point's overrides set for these keys, as the user wrote them; others are left out."""
    own = _values(overrides)
    return {key: own[key] for key in keys if key in own}


def label(overrides: Sequence[str], keys: Sequence[str]) -> str:
    """Returns the values that a point's overrides set for these keys as text, such as `lr=0.1 seed=3`."""
    return " ".join(f"{key.removeprefix('workload.')}={value}" for key, value in values_of(overrides, keys).items())


def _parse_points(text: str) -> tuple[int, ...]:
    return parse_ranges(text, io_bounds.SWEEP_POINTS) if text else ()


def require_known(points: Iterable[int], sweep: Sweep, count: int) -> None:
    """Checks that a sweep has points with these numbers; raises NoRunError: one is not between 0 and `count - 1`."""
    for index in points:
        if not 0 <= index < count:
            raise NoRunError(f"sweep {sweep.id} has no point {index}, only {ranges(range(count))}")


def sweep_of(run: Run) -> Sweep | None:
    """Returns the sweep of which a run is a point; None: the run is not a point."""
    return Sweep(run.path.parent) if run.is_point else None


# -- The files of a search. Trial N of Optuna is point N of the sweep. Importing Optuna takes 0.2 s, so its journal is
# parsed here; the numbers of its operations are Optuna's format on disk, which does not change between versions


SEARCH = "search"
SEARCH_FORMAT = 1
# Names of Optuna's user attributes: of a trial (first line), and of the study (second line).
OVERRIDES, SECONDS, STEPS, PRUNED_AT, CAUSE = "overrides", "seconds", "steps", "pruned_at", "cause"
MIN_STEPS, STOPPED = "min_steps", "stopped"
RUNG = "completed_rung_"  # prefix of the system attributes in which Optuna's successive halving keeps rungs


class TrialState(Enum):
    """State of a trial; the values are Optuna's numbers."""

    RUNNING = 0
    COMPLETE = 1
    PRUNED = 2
    FAIL = 3
    WAITING = 4

    @property
    def over(self) -> bool:
        return self not in (TrialState.RUNNING, TrialState.WAITING)


class SearchSettings(Struct):
    method: Method  # how points are chosen and pruned
    objective: str  # name of the metric by which points are compared
    goal: Goal  # whether the objective is minimized or maximized
    space: Mapping[str, Dimension]  # the keys that are searched, each with its possible values
    fixed: tuple[str, ...] = ()  # overrides that all points have in common
    points: int | None = None  # maximum number of points; None: no limit
    gpu_hours: float | None = None  # budget of all points in GPU-hours (without GPUs: node-hours); None: no limit
    seed: int = 0  # random seed for the choice of points
    devices: int = 1  # number of GPUs of one point; without GPUs, number of its nodes
    devices_are_gpus: bool = False  # whether `devices` and `gpu_hours` count GPUs; False: nodes
    min_steps: int | None = None  # before which no point is pruned; None: see `launcher.search.progress.min_steps_of`
    reduction_factor: int = 3  # at each rung, the best 1/reduction_factor of the points continues

    def full(self, chosen: int) -> bool:
        """Returns whether no point is chosen after so many: `points`, or as many as can be read again."""
        more = chosen + 1
        return (self.points is not None and chosen >= self.points) or bool(
            too_many(more, more * (len(self.space) + len(self.fixed)))
        )


@dataclass
class TrialRecord:
    """One trial in Optuna's journal: a point that the search has chosen."""

    number: int  # number of the trial and of its point
    overrides: tuple[str, ...] = ()  # overrides of the point
    state: TrialState = TrialState.RUNNING  # state of the trial
    value: float | None = None  # final value of the objective; None: none yet, or the trial failed
    reports: dict[int, float] = field(default_factory=dict)  # values of the objective by the number of steps done
    rungs: dict[int, float] = field(default_factory=dict)  # the same at rungs, by the rung's number from 0
    seconds: float | None = None  # how long the point has run, in seconds; None: unknown
    steps: int | None = None  # number of steps that the point has done; None: unknown
    pruned_at: int | None = None  # number of steps done when the search decided to prune the point; None: it did not
    cause: str | None = None  # why the point failed, for the user; None: it did not, or unknown
    began: float = 0.0  # since the epoch; 0, as of `ended`: unknown, or not yet
    ended: float = 0.0


@dataclass
class Journal:
    trials: list[TrialRecord] = field(default_factory=list)  # all trials; trial N has index N
    min_steps: int | None = None  # number of steps at the first rung; None: not known yet, or the search does not prune
    stopped: str | None = None  # why the search ended before its budget was spent, for the user; None: it did not


class SearchRecord:
    def __init__(self, sweep: Path) -> None:
        self.folder = sweep / SEARCH
        self.journal_file = self.folder / "journal.jsonl"
        self.lock_file = self.folder / "lock"

    def exists(self) -> bool:
        return unwrap(exists(self.folder / "settings.json"))

    def create(self, settings: SearchSettings, template: Mapping[str, Any]) -> None:
        """Writes the settings and the template (`point_template.template_of`); the journal of trials is kept."""
        safe_io.make_folder(self.folder)
        safe_io.write(self.folder / "template.json", json.dumps(template))
        values = {"format": SEARCH_FORMAT, **as_json(settings)}
        safe_io.write(self.folder / "settings.json", json.dumps(values, indent=1))

    def settings(self) -> SearchSettings:
        """Returns the settings; raises RunError if there are none, or damaged ones, or ones of another version."""
        path = self.folder / "settings.json"
        found = unwrap(read_json(path))
        if not isinstance(found, dict) or found.pop("format", None) != SEARCH_FORMAT:
            raise RunError(f"{path} cannot be read: it is damaged, or of another version of the launcher")
        if wrong := misfit(found, SearchSettings, "settings"):
            raise RunError(f"{path} cannot be read: {wrong}")
        return from_json(found, SearchSettings)

    def template(self) -> Any:
        """Returns the template for the records of points; None: no file. Raises RunError: it is damaged."""
        return unwrap(read_json(self.folder / "template.json"))

    def journal(self) -> Journal:
        """Returns the journal's present content, empty without a file; raises RunError if it is damaged."""
        return _journal(self.journal_file, _version(self.journal_file))


@lru_cache(maxsize=1)
def _journal(path: Path, _: tuple[int, ...] | None) -> Journal:
    found, overrides = Journal(), 0
    data = unwrap(read_bytes(path, io_bounds.SEARCH_BYTES)) or b""
    for number, entry in enumerate(journal_entries(data, path), 1):
        before = len(found.trials)
        try:
            _apply(found, entry)
            if len(found.trials) > before:
                overrides += len(found.trials[-1].overrides)
                if wrong := too_many(len(found.trials), overrides):
                    raise ValueError(wrong)
        except (ValueError, OverflowError, OSError) as error:  # the last two: a date before 1970 or after 9999
            raise RunError(f"{path} cannot be read: record {number}: {error}") from None
    return found


def too_many(points: int, overrides: int = 0) -> str | None:
    """Returns why a sweep cannot have so many points, or overrides of all points together; None: it can."""
    if points > io_bounds.SWEEP_POINTS:
        return f"it has {points:,} points, and a sweep has at most {io_bounds.SWEEP_POINTS:,}"
    if overrides > io_bounds.SWEEP_OVERRIDES:
        return f"its points have {overrides:,} overrides, and those of a sweep at most {io_bounds.SWEEP_OVERRIDES:,}"
    return None


def journal_entries(data: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records in an Optuna journal; leaves out invalid lines and an incomplete last one.

    Raises RunError: a line is too long.
    """
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        if len(line) > io_bounds.SEARCH_LINE_BYTES:
            raise RunError(
                f"{path} cannot be read: line {number} has more than {long_size(io_bounds.SEARCH_LINE_BYTES)}"
            )
        with contextlib.suppress(ValueError):
            if isinstance(entry := safe_io.parse_json(line), dict) and isinstance(entry.get("op_code"), int):
                yield entry


def _apply(journal: Journal, entry: Mapping[str, Any]) -> None:
    # JournalOperation in Optuna has the codes. 2: a user attribute of the study; 4: a new trial; 6: state and value of
    # a trial; 7: a reported value of a trial; 8, 9: a user or system attribute of a trial; others are ignored. Raises
    # ValueError, OverflowError, OSError for a field that is not of its type, or out of range.
    code = entry["op_code"]
    if code == 2:
        attributes = _typed(entry, "user_attr", dict)
        journal.min_steps = _typed(attributes, MIN_STEPS, int | None, journal.min_steps)
        journal.stopped = _typed(attributes, STOPPED, str | None, journal.stopped)
    elif code == 4:
        overrides = _typed(_typed(entry, "user_attrs", dict, {}), OVERRIDES, tuple[str, ...])
        trial = TrialRecord(len(journal.trials), tuple(overrides), began=_time(entry, "datetime_start"))
        trial.state = TrialState(entry.get("state", TrialState.RUNNING.value))
        journal.trials.append(trial)
    elif type(number := entry.get("trial_id")) is int and 0 <= number < len(journal.trials):
        trial = journal.trials[number]
        if trial.state.over:  # Optuna ignores it as well
            return
        if code == 6:
            trial.state = TrialState(entry.get("state"))
            values = _typed(entry, "values", list | None)
            trial.value = _number({"values": values[0]}, "values") if values else None
            trial.ended = _time(entry, "datetime_complete")
        elif code == 7:
            trial.reports[_typed(entry, "step", int)] = _number(entry, "intermediate_value")
        elif code == 8:
            attributes = _typed(entry, "user_attr", dict)
            trial.seconds = _typed(attributes, SECONDS, float | None, trial.seconds)
            trial.steps = _typed(attributes, STEPS, int | None, trial.steps)
            trial.pruned_at = _typed(attributes, PRUNED_AT, int | None, trial.pruned_at)
            trial.cause = _typed(attributes, CAUSE, str | None, trial.cause)
        elif code == 9:
            attributes = _typed(entry, "system_attr", dict)
            for key in attributes:
                if key.startswith(RUNG):
                    if not 0 <= (rung := int(key.removeprefix(RUNG))) < io_bounds.SEARCH_RUNGS:
                        raise ValueError(f"a search has no rung {rung}")
                    trial.rungs[rung] = _number(attributes, key)


def _typed(values: Mapping[str, Any], name: str, kind: Any, missing: Any = None) -> Any:
    value = values.get(name, missing)
    if wrong := misfit(value, kind, name):
        raise ValueError(wrong)
    return value


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return value if isinstance(value, float) else _typed(values, name, float)


def _time(values: Mapping[str, Any], name: str) -> float:
    text = _typed(values, name, str | None)
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0
