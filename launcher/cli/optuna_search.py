"""`hydra/sweeper=optuna`: Optuna's sweeper, which takes earlier trials from the sweep's runs instead of a database.

A search continues when its command is repeated after it was killed. A database of trials would have to agree with the
runs, and would miss a run that ended while no command was active (and SQLite is not safe on NFS). So each command makes
the study anew, in memory. It enqueues every point of the sweep's manifest before the sampler chooses new ones. Such a
point is treated like any other: the result of one that is done is used, one that runs is waited for, and one that was
never submitted is submitted. The number of trials counts over all commands.

State of a sampler besides the trials (the generations of NSGA-II, the matrix of CMA-ES) is built anew from the trials.
`hydra.sweeper.storage` still works; trials that are complete in it are not enqueued.
"""

from __future__ import annotations

import functools
import logging
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl, create_params_from_overrides
from omegaconf import OmegaConf, read_write
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from launcher.cli.multirun import Multirun
from launcher.cli.search import PointFailed
from launcher.cli.sweep_results import alone, text
from launcher.cli.text import program
from launcher.errors import ConfigError, LauncherError
from launcher.runs import sweep_directory
from launcher.runs.sweep_directory import Sweep


class OptunaSearch(OptunaSweeperImpl):
    """Optuna's sweeper, whose trials are points of a sweep of ours."""

    sampler: Any
    storage: Any
    study_name: Any

    def sweep(self, arguments: list[str]) -> None:
        """Runs the search, and prints the best trial.

        Raises:
            ConfigError: there is nothing to search, or the objective is wrong.
            LauncherError: more trials of a batch failed than max_failure_rate allows, or all did.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # sweep_follow prints the end of each point.
        logging.getLogger(OptunaSweeperImpl.__module__).addFilter(lambda _: False)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        distributions, fixed = self._space(arguments)
        multirun = getattr(self.launcher, "multirun", None)
        if not isinstance(multirun, Multirun):
            raise ConfigError("hydra/sweeper=optuna needs hydra/launcher=launcher, the default")
        sweep, written = multirun.sweep_of(
            [f"{key}={value}" for key, value in {**_lowest(distributions), **fixed}.items()]
        )
        fixed = fixed_of(written, distributions)
        with read_write(self.config.hydra):
            self.config.hydra.sweep.dir = str(sweep.path)  # where optimization_results.yaml is written
        study = self._study(sweep, distributions, fixed)
        try:
            super().sweep(arguments)
        except PointFailed as error:
            raise LauncherError(
                f"{error}\nThe search has stopped. Correct the cause, `{program()} sweep rerun {sweep.id}`, and\n"
                "repeat this command; or allow failures: hydra.sweeper.max_failure_rate=0.5 (of the trials that run at "
                "once)"
            ) from None
        except ValueError:
            if any(trial.state is TrialState.COMPLETE for trial in study.trials):
                raise
            raise LauncherError(f"no trial of {sweep.id} succeeded: {program()} sweep results {sweep.id}") from None
        _print_best(sweep, study, fixed)

    def _space(self, arguments: list[str]) -> tuple[dict[str, BaseDistribution], dict[str, str]]:
        """Returns the distribution of each key that is searched, and the overrides that all trials have.

        Raises:
            ConfigError: Optuna cannot search them, or there are none.
        """
        self._process_searchspace_config()
        try:
            searched, fixed = create_params_from_overrides([*self._parse_sweeper_params_config(), *arguments])
        except (NotImplementedError, ValueError, AssertionError) as error:
            raise ConfigError(f"Optuna cannot search this: {error}") from None
        searched = {**(self.search_space_distributions or {}), **searched}
        searched = {key: value for key, value in searched.items() if key not in fixed}
        if not searched and self.custom_search_space_extender is None:
            raise ConfigError("there is nothing to search: give a key several values, 'workload.lr=interval(0.01,0.5)'")
        return searched, fixed

    def _study(
        self, sweep: Sweep, distributions: Mapping[str, BaseDistribution], fixed: Mapping[str, str]
    ) -> optuna.Study:
        """Returns the study, with all points of the sweep at the front of its queue.

        Raises:
            ConfigError: Optuna cannot use the storage.
        """
        self.storage = self.storage or optuna.storages.InMemoryStorage()
        self.study_name = self.study_name or sweep.id
        try:
            study = optuna.create_study(
                study_name=self.study_name, storage=self.storage, directions=self._get_directions(), load_if_exists=True
            )
        except Exception as error:
            raise ConfigError(
                f"hydra.sweeper.storage={self.storage}: {type(error).__name__} {error}; leave it out, the sweep's runs "
                "are enough to continue the search"
            ) from error
        points = sweep.manifest().points if sweep.recorded() else ()
        found = [params_of(point, distributions, fixed) for point in points]
        known = [params for params in found if params is not None]
        if isinstance(self.sampler, functools.partial) and self.sampler.func is optuna.samplers.GridSampler:
            random.seed(sweep.id)  # GridSampler shuffles with it: the same order in each command
            return study
        trials = study.trials
        stored = [trial.params for trial in trials if trial.state is TrialState.COMPLETE]
        stored += [trial.system_attrs.get("fixed_params") for trial in trials if trial.state is TrialState.WAITING]
        for params in known:
            if params not in stored:
                study.enqueue_trial(params)
        self.n_trials -= sum(trial.params in known for trial in trials if trial.state is TrialState.COMPLETE)
        settings: Any = OmegaConf.to_container(self.config.hydra.sweeper.sampler)
        if known and settings.get("seed") is not None:  # else it would suggest the known points once more
            self.sampler = instantiate({**settings, "seed": settings["seed"] + len(known)})
        return study


def _lowest(distributions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one value of each key: its lowest, or its first choice."""
    return {
        key: each.choices[0] if isinstance(each, CategoricalDistribution) else each.low
        for key, each in distributions.items()
    }


def fixed_of(written: Sequence[str], distributions: Mapping[str, BaseDistribution]) -> dict[str, str]:
    """Returns the overrides that all points have, by key. Pure.

    Args:
        written: the overrides of a point as they are recorded, without the values of secrets.
        distributions: the keys that are searched.
    """
    pairs = (each.partition("=") for each in written)
    return {key: value for key, _, value in pairs if key not in distributions}


def params_of(
    overrides: Sequence[str], distributions: Mapping[str, BaseDistribution], fixed: Mapping[str, str]
) -> dict[str, Any] | None:
    """Returns a point's values of the keys that are searched; None: the point is not of this search. Pure.

    Args:
        overrides: the point's overrides.
        distributions: the keys that are searched.
        fixed: the overrides that all points of the search have.
    """
    common = sweep_directory.canonical(f"{key}={value}" for key, value in fixed.items())
    own = dict(each.split("=", 1) for each in overrides if each not in common)
    if len(own) != len(overrides) - len(common) or not distributions.keys() <= own.keys():
        return None
    params: dict[str, Any] = {}
    for key, written in own.items():
        distribution = distributions.get(key)
        if isinstance(distribution, CategoricalDistribution):
            params.update((key, choice) for choice in distribution.choices if str(choice) == written)
        else:  # keys of a custom_search_space get their distribution only when Optuna suggests a value
            params[key] = OverridesParser.create().parse_override(f"{key}={written}").value()
    return params if params.keys() == own.keys() else None


def _print_best(sweep: Sweep, study: optuna.Study, fixed: Mapping[str, str]) -> None:
    """Prints the best trial; for several objectives, the Pareto-optimal trials."""
    manifest = sweep.manifest()
    for trial in study.best_trials if len(study.directions) > 1 else [study.best_trial]:
        overrides = sweep_directory.canonical(f"{key}={value}" for key, value in {**trial.params, **fixed}.items())
        values = ", ".join(
            f"{name} {text(value)}" for name, value in zip(manifest.objective, trial.values, strict=True)
        )
        number = manifest.points.index(overrides)
        print(f"best  point {number}, {values}: {sweep_directory.label(overrides, list(trial.params))}")
        print(f"alone {alone(overrides)}")
    print(f"next  {program()} sweep results {sweep.id}")
