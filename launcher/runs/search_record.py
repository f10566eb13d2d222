"""The files of a search in a sweep's directory: the one place that knows their format.

    SWEEP/search/           0700, files 0600
      settings.json         what is searched and how; written by the submitter
      template.json         how the record of a point is made (launcher/search/points.py)
      journal.jsonl         Optuna's journal of all trials; asked and written by the jobs (launcher/search)
      lock                  held while the journal is written

Trial N is point N of the sweep. The journal is read here without Optuna, which takes 0.2 s to import. Its operations
and their numbers are Optuna's format on disk, which it keeps between versions.
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

from launcher.config.search_space import Dimension, Goal, Method
from launcher.errors import RunError
from launcher.files import run_files
from launcher.files.json_types import as_json, from_json, misfit
from launcher.files.shared_files import exists, read_json, retry_read, unwrap

FOLDER = "search"
FORMAT = 1
JOURNAL_LIMIT = 1 << 28  # bytes of the journal: those of 100,000 trials
# User attributes of a trial, and of the study.
OVERRIDES, SECONDS, STEPS, PRUNED_AT, CAUSE = "overrides", "seconds", "steps", "pruned_at", "cause"
MIN_STEPS, STOPPED = "min_steps", "stopped"
RUNG = "completed_rung_"  # system attributes of Optuna's successive halving


class TrialState(Enum):
    """State of a trial, with Optuna's numbers."""

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
    """What is searched, and how.

    Attributes:
        method: how points are chosen and pruned.
        objective: the metric that is compared.
        goal: which of its values are good.
        space: the keys that are searched, with their values.
        fixed: overrides that all points have.
        points: most points; None: no limit.
        gpu_hours: most GPU-hours (without GPUs: node-hours) of all points; None: no limit.
        seed: seed of the choice of points.
        devices: GPUs of one point; without GPUs its nodes.
        devices_are_gpus: which of them.
        min_steps: steps before which no point is pruned; None: a part of all steps, see `min_steps_of`.
        reduction_factor: one of so many points continues at each rung.
    """

    method: Method
    objective: str
    goal: Goal
    space: Mapping[str, Dimension]
    fixed: tuple[str, ...] = ()
    points: int | None = None
    gpu_hours: float | None = None
    seed: int = 0
    devices: int = 1
    devices_are_gpus: bool = False
    min_steps: int | None = None
    reduction_factor: int = 3


@dataclass
class Trial:
    """One trial of the journal: a point that was chosen.

    Attributes:
        number: its number, which is that of its point.
        overrides: the overrides of its point.
        state: its state.
        value: the objective; None: it has none yet, or failed.
        reports: the objective after some of its steps.
        rungs: the objective at each rung that it has reached.
        seconds: how long its point has run; None: unknown.
        steps: steps that it has done; None: unknown.
        pruned_at: the step at which it was decided to prune it; None: it was not.
        cause: why it failed.
        began, ended: in seconds since the epoch; 0: unknown, or not yet.
    """

    number: int
    overrides: tuple[str, ...] = ()
    state: TrialState = TrialState.RUNNING
    value: float | None = None
    reports: dict[int, float] = field(default_factory=dict)
    rungs: dict[int, float] = field(default_factory=dict)
    seconds: float | None = None
    steps: int | None = None
    pruned_at: int | None = None
    cause: str | None = None
    began: float = 0.0
    ended: float = 0.0


@dataclass
class Journal:
    """What a search's journal says.

    Attributes:
        trials: all trials, by their numbers.
        min_steps: steps of the first rung; None: unknown yet, or nothing is pruned.
        stopped: why the search has ended before its budget was spent; None: it has not.
    """

    trials: list[Trial] = field(default_factory=list)
    min_steps: int | None = None
    stopped: str | None = None


class SearchRecord:
    """The files of a sweep's search."""

    def __init__(self, sweep: Path) -> None:
        self.folder = sweep / FOLDER
        self.journal_file = self.folder / "journal.jsonl"
        self.lock_file = self.folder / "lock"

    def exists(self) -> bool:
        """Returns whether the sweep is a search.

        Raises:
            UnavailableError: the directory cannot be read now.
        """
        return unwrap(exists(self.folder / "settings.json"))

    def create(self, settings: SearchSettings, template: Mapping[str, Any]) -> None:
        """Writes the settings, and the template of points. Settings that are there are replaced, trials are not.

        Raises:
            OSError: they cannot be written.
        """
        run_files.make_folder(self.folder)
        run_files.write(self.folder / "template.json", json.dumps(template))
        values = {"format": FORMAT, **as_json(settings)}
        run_files.write(self.folder / "settings.json", json.dumps(values, indent=1))

    def settings(self) -> SearchSettings:
        """Returns the settings.

        Raises:
            UnavailableError: they cannot be read now.
            RunError: there are none, they are damaged, or another version wrote them.
        """
        path = self.folder / "settings.json"
        found = unwrap(read_json(path))
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise RunError(f"{path} cannot be read: it is damaged, or of another version of the launcher")
        if wrong := misfit(found, SearchSettings, "settings"):
            raise RunError(f"{path} cannot be read: {wrong}")
        settings: SearchSettings = from_json(found, SearchSettings)
        return settings

    def template(self) -> Any:
        """Returns the template of points.

        Raises:
            UnavailableError: it cannot be read now.
            RunError: it is damaged.
        """
        return unwrap(read_json(self.folder / "template.json"))

    def journal(self) -> Journal:
        """Returns what the journal says now; an empty one if there is none yet.

        Raises:
            UnavailableError: it cannot be read now.
            RunError: it is damaged.
        """
        found = Journal()
        for entry in entries(unwrap(retry_read(self._journal_bytes, self.journal_file)) or b""):
            try:
                _apply(found, entry)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
                raise RunError(f"{self.journal_file} cannot be read: {error!r}") from None
        return found

    def _journal_bytes(self) -> bytes:
        with run_files.open_regular(self.journal_file) as file:
            return file.read(JOURNAL_LIMIT)


def entries(data: bytes) -> Iterator[dict[str, Any]]:
    """Yields the operations in a journal's bytes; lines that are no JSON object, and an incomplete last one, are left
    out. Pure."""
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(entry := json.loads(line), dict) and isinstance(entry.get("op_code"), int):
                yield entry


def _apply(journal: Journal, entry: Mapping[str, Any]) -> None:
    """Applies one of Optuna's operations: 2 and 3 set an attribute of the study, 4 makes a trial, 5 sets a parameter, 6
    a state, 7 a report, 8 and 9 an attribute of the trial."""
    code = entry["op_code"]
    if code == 2:
        attributes = entry.get("user_attr", {})
        journal.min_steps = attributes.get(MIN_STEPS, journal.min_steps)
        journal.stopped = attributes.get(STOPPED, journal.stopped)
    elif code == 4:
        attributes = entry.get("user_attrs", {})
        trial = Trial(
            len(journal.trials), tuple(attributes.get(OVERRIDES, ())), began=_time(entry.get("datetime_start"))
        )
        trial.state = TrialState(entry.get("state", TrialState.RUNNING.value))
        journal.trials.append(trial)
    elif isinstance(number := entry.get("trial_id"), int) and number < len(journal.trials):
        trial = journal.trials[number]
        if trial.state.over:  # Optuna ignores it as well
            return
        if code == 6:
            trial.state = TrialState(entry["state"])
            trial.value = (entry.get("values") or [None])[0]
            trial.ended = _time(entry.get("datetime_complete"))
        elif code == 7:
            trial.reports[entry["step"]] = entry["intermediate_value"]
        elif code == 8:
            attributes = entry["user_attr"]
            trial.seconds = attributes.get(SECONDS, trial.seconds)
            trial.steps = attributes.get(STEPS, trial.steps)
            trial.pruned_at = attributes.get(PRUNED_AT, trial.pruned_at)
            trial.cause = attributes.get(CAUSE, trial.cause)
        elif code == 9:
            for key, value in entry["system_attr"].items():
                if key.startswith(RUNG):
                    trial.rungs[int(key.removeprefix(RUNG))] = value


def _time(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0
