"""The files of a search in a sweep's directory. Reads the settings, the template, and Optuna's journal without Optuna.

    SWEEP/search/           0700, files 0600
      settings.json         what is searched, and how; written by the submitter
      template.json         from which the record of each point is made (launcher/search/points.py)
      journal.jsonl         Optuna's journal of all trials; written by the jobs (launcher/search/search.py)
      lock                  held during each operation on the journal (launcher/search/search.py)

Trial N of Optuna is point N of the sweep. Importing Optuna takes 0.2 s, so the journal is parsed here. The numbers of
its operations are Optuna's format on disk, which does not change between versions.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from launcher import bounds
from launcher.config.search_space import Dimension, Goal, Method
from launcher.errors import RunError
from launcher.files import run_files
from launcher.files.json_types import as_json, from_json, misfit
from launcher.files.shared_files import exists, read_bytes, read_json, unwrap
from launcher.formatting import long_size

FOLDER = "search"
FORMAT = 1
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


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search: what is searched, and how."""

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
    # number of steps before which no point is pruned; None: derived from the steps that points report, see
    # `launcher.search.progress.min_steps_of`
    min_steps: int | None = None
    reduction_factor: int = 3  # at each rung, the best 1/reduction_factor of the points continues

    def full(self, chosen: int) -> bool:
        """Returns whether no point is chosen after so many: `points`, or as many as can be read again."""
        more = chosen + 1
        return (self.points is not None and chosen >= self.points) or bool(
            too_many(more, more * (len(self.space) + len(self.fixed)))
        )


@dataclass
class Trial:
    """One trial in Optuna's journal: a point that the search has chosen."""

    number: int  # number of the trial and of its point
    overrides: tuple[str, ...] = ()  # overrides of the point
    state: TrialState = TrialState.RUNNING  # state of the trial
    value: float | None = None  # final value of the objective; None: none yet, or the trial failed
    # reported values of the objective, by the number of steps done
    reports: dict[int, float] = field(default_factory=dict)
    # value of the objective at each rung that the point has reached, by the rung's number from 0
    rungs: dict[int, float] = field(default_factory=dict)
    seconds: float | None = None  # how long the point has run, in seconds; None: unknown
    steps: int | None = None  # number of steps that the point has done; None: unknown
    pruned_at: int | None = None  # number of steps done when the search decided to prune the point; None: it did not
    # why the point failed, for the user; None: it did not, or unknown. began, ended: start and end of the trial, in
    # seconds since the epoch; 0: unknown, or not yet
    cause: str | None = None
    began: float = 0.0
    ended: float = 0.0


@dataclass
class Journal:
    """Content of a search's journal."""

    trials: list[Trial] = field(default_factory=list)  # all trials; trial N has index N
    min_steps: int | None = None  # number of steps at the first rung; None: not known yet, or the search does not prune
    stopped: str | None = None  # why the search ended before its budget was spent, for the user; None: it did not


class SearchRecord:
    """The files of a sweep's search; `sweep` is the sweep's directory."""

    def __init__(self, sweep: Path) -> None:
        self.folder = sweep / FOLDER
        self.journal_file = self.folder / "journal.jsonl"
        self.lock_file = self.folder / "lock"

    def exists(self) -> bool:
        """Returns whether the sweep is a search: whether the settings exist."""
        return unwrap(exists(self.folder / "settings.json"))

    def create(self, settings: SearchSettings, template: Mapping[str, Any]) -> None:
        """Writes the settings and the template (`points.template_of`); the journal of trials is kept."""
        run_files.make_folder(self.folder)
        run_files.write(self.folder / "template.json", json.dumps(template))
        values = {"format": FORMAT, **as_json(settings)}
        run_files.write(self.folder / "settings.json", json.dumps(values, indent=1))

    def settings(self) -> SearchSettings:
        """Returns the settings; raises RunError if there are none, or damaged ones, or ones of another version."""
        path = self.folder / "settings.json"
        found = unwrap(read_json(path))
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise RunError(f"{path} cannot be read: it is damaged, or of another version of the launcher")
        if wrong := misfit(found, SearchSettings, "settings"):
            raise RunError(f"{path} cannot be read: {wrong}")
        settings: SearchSettings = from_json(found, SearchSettings)
        return settings

    def template(self) -> Any:
        """Returns the template for the records of points; None: no file. Raises RunError: it is damaged."""
        return unwrap(read_json(self.folder / "template.json"))

    def journal(self) -> Journal:
        """Returns the journal's present content, empty without a file; raises RunError if it is damaged."""
        found, overrides = Journal(), 0
        data = unwrap(read_bytes(self.journal_file, bounds.SEARCH_BYTES)) or b""
        for number, entry in enumerate(entries(data, self.journal_file), 1):
            before = len(found.trials)
            try:
                _apply(found, entry)
                if len(found.trials) > before:
                    overrides += len(found.trials[-1].overrides)
                    if wrong := too_many(len(found.trials), overrides):
                        raise ValueError(wrong)
            except (ValueError, OverflowError, OSError) as error:  # the last two: a date before 1970 or after 9999
                raise RunError(f"{self.journal_file} cannot be read: record {number}: {error}") from None
        return found


def too_many(points: int, overrides: int = 0) -> str | None:
    """Returns why a sweep cannot have so many points, or overrides of all points together; None: it can."""
    if points > bounds.SWEEP_POINTS:
        return f"it has {points:,} points, and a sweep has at most {bounds.SWEEP_POINTS:,}"
    if overrides > bounds.SWEEP_OVERRIDES:
        return f"its points have {overrides:,} overrides, and those of a sweep at most {bounds.SWEEP_OVERRIDES:,}"
    return None


def entries(data: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records in an Optuna journal; leaves out invalid lines and an incomplete last one.

    Raises RunError: a line is too long.
    """
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        if len(line) > bounds.SEARCH_LINE_BYTES:
            raise RunError(f"{path} cannot be read: line {number} has more than {long_size(bounds.SEARCH_LINE_BYTES)}")
        with contextlib.suppress(ValueError):
            if isinstance(entry := run_files.parse_json(line), dict) and isinstance(entry.get("op_code"), int):
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
        trial = Trial(len(journal.trials), tuple(overrides), began=_time(entry, "datetime_start"))
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
                    if not 0 <= (rung := int(key.removeprefix(RUNG))) < bounds.SEARCH_RUNGS:
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
