"""The search of points with Optuna: its journal, the distributions of keys, and what it asks and tells.

It replaces Optuna's JournalFileBackend, with the same file format: the records of an operation (choose a point, say)
are written together, so that a killed process leaves all or none; only the lock of a dead holder is taken over, not any
lock after 30 s; an incomplete record (a full disk, a killed node) is skipped, and does not end the reading.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, create_trial

from launcher import io_bounds
from launcher.config import search_space
from launcher.config.search_space import Dimension, Method
from launcher.errors import RunError, UnavailableError
from launcher.files import safe_io
from launcher.files.retried_reads import retry_read, unwrap
from launcher.files.safe_io import naming, open_regular, open_to_append, write_all
from launcher.formatting import flat, long_size
from launcher.runs import sweep_directory
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Pruned
from launcher.runs.lease_and_locks import hold
from launcher.runs.sweep_directory import OVERRIDES, SearchRecord, SearchSettings, Sweep, TrialRecord, TrialState
from launcher.search import progress
from launcher.search.point_template import record_of
from launcher.search.progress import PointReports, seconds_of, value_of


class JournalBackend(BaseJournalBackend):
    # It serves one JournalStorage, which reads each record once, in order

    def __init__(self, record: SearchRecord, waiting: Callable[[], None] = lambda: None) -> None:
        self._path, self._lock, self._waiting = record.journal_file, record.lock_file, waiting
        self._offset = 0  # bytes that have been read
        self._number = 0  # records that have been read
        self._open = self._up_to_date = False  # whether an operation is in progress; whether it has read the file
        self._pending: list[dict[str, Any]] = []  # records of this operation, which are not written yet
        self._shown = 0  # how many of the pending records have been read

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the records that were not read yet, also of this operation; UnavailableError: the lock is lost."""
        if log_number_from != self._number:
            raise ValueError(f"records are read in order: {self._number} is next, not {log_number_from}")
        if not self._shown:  # else the lock is held, and the file does not grow
            data = unwrap(retry_read(self._rest, self._path)) or b""
            if self._up_to_date and b"\n" in data:
                raise self._lock_lost()
            self._up_to_date = self._open
            self._offset += data.rfind(b"\n") + 1
            for entry in sweep_directory.journal_entries(data, self._path):
                self._number += 1
                yield entry
        for entry in self._pending[self._shown :]:
            self._shown += 1
            self._number += 1
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds records to the current `operation`, which writes them at the end of its block."""
        if not self._open:
            raise ValueError("records are appended within an operation")
        self._pending += json.loads(json.dumps(logs))  # as they will be read from the file: enums as numbers

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Holds the journal's lock in the block, and writes its records at the end; raises UnavailableError, OSError.

        After an error nothing is written, and the caller must make a new JournalStorage and backend: the old ones have
        read records that were not written.
        """
        with hold(self._lock, waiting=self._waiting):
            self._open = True
            try:
                yield
                self._write()
            finally:
                self._open, self._up_to_date, self._pending, self._shown = False, False, [], 0

    def _lock_lost(self) -> UnavailableError:
        return UnavailableError(f"{self._path} was written by a process that has taken over its lock")

    def _rest(self) -> bytes:
        with open_regular(self._path) as file:
            file.seek(self._offset)
            return file.read(io_bounds.SEARCH_BYTES)

    def _write(self) -> None:
        if not self._pending:
            return
        lines = [json.dumps(each, separators=(",", ":")).encode() for each in self._pending]
        if (longest := max(map(len, lines))) > io_bounds.SEARCH_LINE_BYTES:
            raise RunError(
                f"a line of {self._path} would have {long_size(longest)}, and no more than "
                f"{long_size(io_bounds.SEARCH_LINE_BYTES)} are read: give the keys fewer choices"
            )
        data = b"\n".join(lines) + b"\n"
        with open_to_append(self._path) as descriptor, naming(self._path):
            size = os.fstat(descriptor).st_size
            if b"\n" in os.pread(descriptor, max(0, size - self._offset), self._offset):
                raise self._lock_lost()
            if self._offset + len(data) > io_bounds.SEARCH_BYTES:
                raise RunError(
                    f"{self._path} has {long_size(size)}, and no more than {long_size(io_bounds.SEARCH_BYTES)} are "
                    "read: continue with another search (sweep.id)"
                )
            if size > self._offset:  # a killed node has left a part of a line, behind which Optuna would not read on
                os.ftruncate(descriptor, self._offset)
            write_all(descriptor, data, sync=True)
        # Only this process's records are new in the file, because it held the lock, and it has read them already.
        self._offset = min(size, self._offset) + len(data)


# -- Converts the keys of a search to Optuna's distributions, and parameter values to text in overrides and back


def value_text(dimension: Dimension, value: Any) -> str:
    """Returns a parameter value of Optuna as the text in an override (`workload.lr=TEXT`)."""
    return value if dimension.choices else dimension.text(value)


def param_of(dimension: Dimension, written: str) -> Any:
    """Returns the text in an override as a parameter value of Optuna; the inverse of `text`."""
    return written if dimension.choices else int(written) if dimension.whole else float(written)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.whole:
        low, high, step = int(dimension.low), int(dimension.high), int(dimension.step or 1)
        return IntDistribution(low, high, log=dimension.log, step=step)
    smallest, largest = map(float, dimension.ends())  # with a step, without the error of float arithmetic
    return FloatDistribution(smallest, largest, log=dimension.log, step=dimension.step)


# -- Chooses the points of a sweep, and decides which of them are pruned, with Optuna's samplers and pruner
#
# The process that calls makes the decision itself, from the content of the journal, while it holds the journal's lock.
# So it does not matter which process calls, and a killed process leaves no half-made decision. The sampler gets a new
# seed for each trial, from the search's seed and the trial's number, so the same journal leads to the same next point.


NAME = "search"  # name of Optuna's study
LOOK = 5.0  # seconds between two looks whether a search that has ended has other settings
RUNGS = 3  # number of rungs, unless sweep.asha.min_steps is given


class Search:
    """The search of a sweep, for one process. A forked child must make its own object."""

    def __init__(
        self, sweep: Path, seconds_of: Callable[[int], float] = lambda _: 0.0,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        # seconds_of: how long a point that has not ended has run. Raises RunError: there are no settings of a search
        self._record, self._seconds_of, self._waiting = SearchRecord(sweep), seconds_of, waiting
        self.settings = self._record.settings()
        self._distributions = {key: _distribution(each) for key, each in self.settings.space.items()}
        self._size = search_space.size(self.settings.space)
        self._taken: set[int | None] = set()  # indices of the combinations of known trials
        self._indexed = 0  # number of these trials
        self._next_rung: dict[int, float] = {}  # by trial: steps at its next rung; reports before it are ignored
        self._opened: tuple[JournalBackend, optuna.Study] | None = None

    def ask(self) -> TrialRecord | None:
        """Chooses the next point, and records it; None: the search has ended. Raises UnavailableError, OSError."""
        with self._operation() as study:
            self.refresh()
            trials = study.get_trials(deepcopy=False)
            if sweep_directory.STOPPED in study.user_attrs or not self._affordable(trials):
                return None
            params = self._choose(study, trials)
            if params is None:
                return None
            values = {key: value_text(self.settings.space[key], value) for key, value in params.items()}
            overrides = search_space.overrides(values, self.settings.fixed)
            study.add_trial(
                create_trial(
                    state=optuna.trial.TrialState.RUNNING, params=params, distributions=self._distributions,
                    user_attrs={OVERRIDES: overrides},
                )
            )  # fmt: skip
            return TrialRecord(len(trials), overrides)

    def refresh(self) -> None:
        """Reads the settings again, since a repeated command may have raised the budget; damaged ones are left out."""
        try:
            self.settings = self._record.settings()
        except UnavailableError:
            raise
        except RunError:
            pass

    def report(self, number: int, step: int, value: float, total: int = 0) -> bool:
        """Decides whether to prune a point, from its objective (NaN: the worst) after some steps; total: 0 if unknown.

        Between rungs, no file is read. Raises UnavailableError, OSError: the call may be repeated.
        """
        if self.settings.method is not Method.asha or step < self._next_rung.get(number, 0):
            return False
        if not total and self.settings.min_steps is None:  # the first rung cannot be computed
            return False
        with self._operation() as study:
            trial = self._trial(study, number)
            if trial is None or trial.state.is_finished():  # the latter: the user has started the point again
                return False
            if sweep_directory.PRUNED_AT in trial.user_attrs:
                return True
            minimum = self._min_steps(study, total)
            if minimum is None:
                return False
            pruner = SuccessiveHalvingPruner(minimum, self.settings.reduction_factor)
            storage = study._storage
            pruned = False
            if step >= self._rung_of(trial, minimum):
                storage.set_trial_intermediate_value(trial._trial_id, step, value)
                trial = study.get_trials(deepcopy=False)[number]
                pruned = pruner.prune(study, trial)
                if pruned:
                    storage.set_trial_user_attr(trial._trial_id, sweep_directory.PRUNED_AT, step)
            self._next_rung[number] = self._rung_of(study.get_trials(deepcopy=False)[number], minimum)
            return pruned

    def finish(
        self, number: int, state: TrialState, value: float | None = None, seconds: float | None = None,
        steps: int | None = None, cause: str | None = None,
    ) -> None:  # fmt: skip
        """Records the end of a point, once; done with None or NaN it counts as failed.

        seconds, steps: of all its attempts; None: unknown. Raises UnavailableError, OSError: the call may be repeated.
        """
        with self._operation() as study:
            trial = self._trial(study, number)
            if trial is None or trial.state.is_finished():
                return
            if state is TrialState.COMPLETE and (value is None or math.isnan(value)):
                state, cause = TrialState.FAIL, cause or f"{self.settings.objective} is not a number"
            known = {sweep_directory.SECONDS: seconds, sweep_directory.STEPS: steps, sweep_directory.CAUSE: cause}
            for key, each in known.items():
                if each is not None:
                    study._storage.set_trial_user_attr(trial._trial_id, key, each)
            study.tell(number, value if state is TrialState.COMPLETE else None, optuna.trial.TrialState(state.value))

    def trials(self) -> list[FrozenTrial]:
        """Returns all points that have been chosen so far, also by others; raises UnavailableError, OSError."""
        if self._opened is None:
            with self._operation():
                pass
        assert self._opened is not None
        return self._opened[1].get_trials(deepcopy=False)

    def stop(self, why: str) -> None:
        """Ends the search, so that `ask` chooses no more points; why: for the user, with what can be done about it."""
        with self._operation() as study:
            if sweep_directory.STOPPED not in study.user_attrs:
                study.set_user_attr(sweep_directory.STOPPED, why)

    # -- within an operation

    def _affordable(self, trials: Sequence[FrozenTrial]) -> bool:
        settings = self.settings
        if settings.full(len(trials)):
            return False
        if settings.gpu_hours is None:
            return True
        return progress.budget_spent(map(self._seconds, trials), settings.devices) < settings.gpu_hours

    def _seconds(self, trial: FrozenTrial) -> float:
        known = trial.user_attrs.get(sweep_directory.SECONDS)
        if known is None and not trial.state.is_finished():
            known = self._seconds_of(trial.number)
        return known or 0.0

    def _choose(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, Any] | None:
        settings, number = self.settings, len(trials)
        if self._size is not None and number >= self._size:
            return None
        seed = seed_of(settings.seed, number)
        if settings.method is Method.grid and self._size is not None:
            return self._combination(number)
        sampler: BaseSampler
        if settings.method is Method.tpe:
            sampler = TPESampler(constant_liar=True, seed=seed)
        elif self._size is None or any(each.log for each in settings.space.values()):
            sampler = RandomSampler(seed)
        else:
            return self._combination(progress.permutation(self._size, number, settings.seed))
        params = self._sampled(study, sampler, number)
        if self._size is not None:
            self._taken.update(self._index(each.params) for each in trials[self._indexed :])
            self._indexed = number
            index = self._index(params)
            while index is None or index in self._taken:  # take the next free combination, or one chosen by the seed
                index = (seed if index is None else index + 1) % self._size
            return self._combination(index)
        return params

    def _sampled(self, study: optuna.Study, sampler: BaseSampler, number: int) -> dict[str, Any]:
        trial = create_trial(state=optuna.trial.TrialState.RUNNING)
        trial.number = number
        relative = sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))
        params = {
            key: relative[key] if key in relative else sampler.sample_independent(study, trial, key, each)
            for key, each in self._distributions.items()
        }
        space = self.settings.space
        return {key: value if space[key].choices else space[key].readable(value) for key, value in params.items()}

    def _combination(self, index: int) -> dict[str, Any]:
        values = search_space.combination(self.settings.space, index)
        return {key: param_of(self.settings.space[key], each) for key, each in values.items()}

    def _index(self, params: dict[str, Any]) -> int | None:
        values = {key: value_text(each, params[key]) for key, each in self.settings.space.items()}
        return search_space.index_of(self.settings.space, values)

    def _min_steps(self, study: optuna.Study, total: int) -> int | None:
        # The first result is recorded in the study
        found = study.user_attrs.get(sweep_directory.MIN_STEPS)
        if found is None:
            found = self.settings.min_steps or progress.min_steps_of(total, self.settings.reduction_factor, RUNGS)
            if found is not None:
                study.set_user_attr(sweep_directory.MIN_STEPS, found)
        return found

    def _rung_of(self, trial: FrozenTrial, minimum: int) -> float:
        reached = sum(key.startswith(sweep_directory.RUNG) for key in trial.system_attrs)
        return minimum * float(self.settings.reduction_factor**reached)

    def _trial(self, study: optuna.Study, number: int) -> FrozenTrial | None:
        trials = study.get_trials(deepcopy=False)
        return trials[number] if number < len(trials) else None

    @contextlib.contextmanager
    def _operation(self) -> Iterator[optuna.Study]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # TPESampler's constant_liar is experimental
            backend, study = self._opened or (JournalBackend(self._record, self._waiting), None)
            self._opened = None  # after an error, the study contains changes that were not written
            with backend.operation():
                study = study or self._study(backend)
                yield study
            self._opened = backend, study

    def _study(self, backend: JournalBackend) -> optuna.Study:
        storage, goal = JournalStorage(backend), self.settings.goal.value
        return optuna.create_study(storage=storage, study_name=NAME, load_if_exists=True, direction=goal)


def seed_of(seed: int, number: int) -> int:
    """Returns the seed of a trial's sampler, from 0 to 2**32 - 1, from the search's seed and the trial's number."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


# -- What a slot manager does for a search. If it is killed in between, no point is lost: a chosen point is in the
# journal, and the manager that claims it next makes its record and runs it.


class SearchPoints:
    """The points of a sweep's search, for one slot manager; UnavailableError or OSError: call again."""

    def __init__(self, sweep: Sweep, waiting: Callable[[], None] = lambda: None) -> None:
        # waiting: called again and again while another process holds the journal's lock
        self._sweep = sweep
        self._search = Search(sweep.path, lambda number: seconds_of(sweep.run(number)), waiting)
        self._template: Any = SearchRecord(sweep.path).template()
        self._reports: dict[int, PointReports] = {}
        self._over: SearchSettings | None = None  # the settings with which the search has ended
        self._looks_at = 0.0  # monotonic time from which on these are read again

    def count(self) -> int:
        """Returns the number of points so far, also of those that other managers have chosen."""
        return len(self._search.trials())

    def more(self, *, now: bool = False) -> bool:
        """Chooses another point, which increases `count`; returns False if the search has ended with its settings.

        now: whether these are read again even if they were read less than LOOK seconds ago.
        """
        if self._over is not None and (now or time.monotonic() >= self._looks_at):
            self._looks_at = time.monotonic() + LOOK
            self._search.refresh()
        if self._over is None or self._over != self._search.settings:
            self._over = self._search.settings if self._search.ask() is None else None
        return self._over is None

    def made(self, number: int) -> Run:
        """Makes the run directory and the record of a chosen point, unless they exist, and returns the run."""
        run = self._sweep.run(number)
        if not run.recorded():
            overrides = self._search.trials()[number].user_attrs[OVERRIDES]
            Run.create(run.path)
            record = record_of(self._template, f"{self._sweep.id}/{number}", overrides)
            record["token"] = token_of(record["plan"]["run_dir"])
            text = safe_io.json_text(record, io_bounds.RECORD_BYTES, lines=False)
            safe_io.write(run.path / "record.json", text, sync=False)
        return run

    def to_prune(self, number: int) -> bool:
        """Returns whether to stop a point, by its reports since the last call; if so, records that it is pruned."""
        if self._search.settings.method is not Method.asha:  # its reports are read once, at its end
            return False
        reports = self._of(number)
        if not any(self._search.report(number, *report) for report in reports.new()):
            return False
        self._sweep.run(number).journal(Pruned(step=reports.steps), sync=False)
        return True

    def ended(self, number: int, outcome: TrialState) -> None:
        """Records the end of a point; one that is done without the objective ends the search if none has had it yet."""
        run, reports, cause = self._sweep.run(number), self._of(number), None
        value = value_of(run, reports) if outcome is TrialState.COMPLETE else None
        if outcome is TrialState.COMPLETE and value is None:
            metrics = flat(run.result() or {})
            if reports.objective not in metrics:  # else it has failed alone: null for what is not feasible, say
                cause = progress.missing_reports(reports.objective, metrics)
                if not any(each.state is optuna.trial.TrialState.COMPLETE for each in self._search.trials()):
                    self._search.stop(cause)
        reports.new()
        self._search.finish(number, outcome, value, seconds_of(run), reports.steps, cause)
        self._reports.pop(number, None)

    def _of(self, number: int) -> PointReports:
        return self._reports.setdefault(number, PointReports(self._sweep.run(number), self._search.settings.objective))
