"""Chooses the points of a sweep, and decides which of them are pruned, with Optuna's samplers and pruner.

The process that calls makes the decision itself, from the content of the journal, while it holds the journal's lock.
So it does not matter which process calls, and a killed process leaves no half-made decision. The sampler gets a new
seed for each trial, from the search's seed and the trial's number, so the same journal leads to the same next point.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from launcher.config import search_space
from launcher.config.search_space import Method
from launcher.runs.search_record import (
    CAUSE,
    MIN_STEPS,
    OVERRIDES,
    PRUNED_AT,
    RUNG,
    SECONDS,
    STEPS,
    STOPPED,
    SearchRecord,
)
from launcher.search import distributions
from launcher.search.budget import Cost, min_steps_of, permutation, spent
from launcher.search.journal import JournalBackend

NAME = "search"  # name of Optuna's study
RUNGS = 3  # number of rungs, unless sweep.asha.min_steps is given


class Outcome(Enum):
    """How a point ended."""

    DONE = "done"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """A point that the search has chosen."""

    number: int  # number of the point in the sweep
    overrides: tuple[str, ...]  # all overrides of the point


class Search:
    """The search of a sweep, for one process. A forked child must make its own object."""

    def __init__(
        self, sweep: Path, seconds_of: Callable[[int], float] = lambda _: 0.0,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """seconds_of: returns how long a point has run, by its number; called for points that have not ended.
        waiting: called again and again while another process holds the journal's lock.
        Raises UnavailableError: the settings of the search cannot be read now.
        Raises RunError: the sweep has no settings of a search, or they are damaged.
        """
        self._record, self._seconds_of, self._waiting = SearchRecord(sweep), seconds_of, waiting
        self.settings = self._record.settings()
        self._distributions = distributions.of(self.settings.space)
        self._size = search_space.size(self.settings.space)
        self._next_rung: dict[int, float] = {}  # by trial: steps at its next rung; reports before it are ignored
        self._opened: tuple[JournalBackend, optuna.Study] | None = None

    def ask(self) -> Trial | None:
        """Chooses the next point, and records it in the journal.

        Returns the point; None: the search has ended (the budget is spent, every combination is taken, or it was
            stopped).
        Raises UnavailableError: the file server does not respond.
        Raises OSError: the journal cannot be written.
        """
        with self._operation() as study:
            trials = study.get_trials(deepcopy=False)
            if STOPPED in study.user_attrs or not self._affordable(trials):
                return None
            params = self._choose(study, trials)
            if params is None:
                return None
            values = {key: distributions.text(self.settings.space[key], value) for key, value in params.items()}
            overrides = search_space.overrides(values, self.settings.fixed)
            study.add_trial(
                create_trial(
                    state=TrialState.RUNNING, params=params, distributions=self._distributions,
                    user_attrs={OVERRIDES: overrides},
                )
            )  # fmt: skip
            return Trial(len(trials), overrides)

    def report(self, number: int, step: int, value: float, total: int = 0) -> bool:
        """Decides whether to prune a point, from its objective after some steps. Between rungs, no file is read.

        value: objective after these steps; NaN is worse than any number.
        total: total number of steps of the point; 0: unknown.
        Raises UnavailableError, OSError: as for `ask`; the call may be repeated.
        """
        if self.settings.method is not Method.asha or step < self._next_rung.get(number, 0):
            return False
        if not total and self.settings.min_steps is None:  # the first rung cannot be computed
            return False
        with self._operation() as study:
            trial = self._trial(study, number)
            if trial is None or trial.state.is_finished():  # the latter: the user has started the point again
                return False
            if PRUNED_AT in trial.user_attrs:
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
                    storage.set_trial_user_attr(trial._trial_id, PRUNED_AT, step)
            self._next_rung[number] = self._rung_of(study.get_trials(deepcopy=False)[number], minimum)
            return pruned

    def finish(
        self, number: int, outcome: Outcome, value: float | None = None, seconds: float | None = None,
        steps: int | None = None, cause: str | None = None,
    ) -> None:  # fmt: skip
        """Records the end of a point; a second end of the same point is ignored.

        value: final objective of the point. A point that is done with None or NaN counts as failed.
        seconds: how long the point has run, in all its attempts; None: unknown.
        steps: number of steps that the point has done; None: unknown.
        Raises UnavailableError, OSError: as for `ask`; the call may be repeated.
        """
        with self._operation() as study:
            trial = self._trial(study, number)
            if trial is None or trial.state.is_finished():
                return
            state = {Outcome.DONE: TrialState.COMPLETE, Outcome.PRUNED: TrialState.PRUNED}.get(outcome, TrialState.FAIL)
            if state is TrialState.COMPLETE and (value is None or math.isnan(value)):
                state, cause = TrialState.FAIL, cause or f"{self.settings.objective} is not a number"
            for key, each in ((SECONDS, seconds), (STEPS, steps), (CAUSE, cause)):
                if each is not None:
                    study._storage.set_trial_user_attr(trial._trial_id, key, each)
            study.tell(number, value if state is TrialState.COMPLETE else None, state)

    def points(self) -> list[Trial]:
        """Returns all points that have been chosen so far, also those that other processes have chosen.

        Raises UnavailableError, OSError: as for `ask`.
        """
        if self._opened is None:
            with self._operation():
                pass
        assert self._opened is not None
        trials = self._opened[1].get_trials(deepcopy=False)
        return [Trial(number, tuple(each.user_attrs[OVERRIDES])) for number, each in enumerate(trials)]

    def stop(self, why: str) -> None:
        """Ends the search, so that `ask` chooses no more points.

        why: the reason, and what the user can do about it, as text for the user.
        Raises UnavailableError, OSError: as for `ask`.
        """
        with self._operation() as study:
            if STOPPED not in study.user_attrs:
                study.set_user_attr(STOPPED, why)

    # -- within an operation

    def _affordable(self, trials: Sequence[FrozenTrial]) -> bool:
        settings = self.settings
        if settings.full(len(trials)):
            return False
        if settings.gpu_hours is None:
            return True
        return spent(map(self._cost, trials), settings.devices) < settings.gpu_hours

    def _cost(self, trial: FrozenTrial) -> Cost:
        known = trial.user_attrs.get(SECONDS)
        if known is None and not trial.state.is_finished():
            known = self._seconds_of(trial.number)
        return Cost(known or 0.0)

    def _choose(self, study: optuna.Study, trials: Sequence[FrozenTrial]) -> dict[str, Any] | None:
        settings, number = self.settings, len(trials)
        if self._size is not None and number >= self._size:
            return None
        seed = seed_of(settings.seed, number)
        if settings.method is Method.grid and self._size is not None:
            return self._combination(number)
        if settings.method is not Method.tpe:
            if self._size is not None:
                return self._combination(permutation(self._size, number, settings.seed))
            return self._sampled(study, RandomSampler(seed), number)
        params = self._sampled(study, TPESampler(constant_liar=True, seed=seed), number)
        if self._size is not None:
            taken = {self._index(each.params) for each in trials}
            index = self._index(params)
            while index in taken:  # take the next free combination; from one chosen by the seed if there is no index
                index = (seed if index is None else index + 1) % self._size
            assert index is not None
            return self._combination(index)
        return params

    def _sampled(self, study: optuna.Study, sampler: BaseSampler, number: int) -> dict[str, Any]:
        trial = create_trial(state=TrialState.RUNNING)
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
        return {key: distributions.param(self.settings.space[key], each) for key, each in values.items()}

    def _index(self, params: dict[str, Any]) -> int | None:
        values = {key: distributions.text(each, params[key]) for key, each in self.settings.space.items()}
        return search_space.index_of(self.settings.space, values)

    def _min_steps(self, study: optuna.Study, total: int) -> int | None:
        # The first result is recorded in the study
        found = study.user_attrs.get(MIN_STEPS)
        if found is None:
            found = self.settings.min_steps or min_steps_of(total, self.settings.reduction_factor, RUNGS)
            if found is not None:
                study.set_user_attr(MIN_STEPS, found)
        return found

    def _rung_of(self, trial: FrozenTrial, minimum: int) -> float:
        reached = sum(key.startswith(RUNG) for key in trial.system_attrs)
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
