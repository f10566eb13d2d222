"""`hydra/sweeper=optuna`: proposes points with Optuna, a batch at a time, in a command that waits for each batch.

If the command is killed and then repeated, the search continues. A database of trials would have to agree with the
runs, and would miss a run that ended while no command was active (and SQLite is not safe on NFS). So each command
creates a new study in memory, and enqueues every point of the sweep's manifest before the sampler proposes new ones. An
enqueued point is treated like any other: if it is done, its result is used; if it is running, the command waits for it;
if it was never submitted, it is submitted. `hydra.sweeper.n_trials` is the total over all commands.

A sampler's state other than the trials (NSGA-II's generations, CMA-ES's matrix) is computed again from the trials.
`hydra.sweeper.storage` still works; trials that are complete in it are not enqueued.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import InstantiationException
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from optuna.trial import TrialState

from launcher.cli.hydra_sweepers import PointFailed
from launcher.cli.multirun import Multirun
from launcher.cli.sweep_results import single_run, text
from launcher.cli.text import program
from launcher.config import search_space
from launcher.config.points import require_space, space_of
from launcher.config.search_space import Space
from launcher.errors import ConfigError, LauncherError
from launcher.runs import sweep_directory
from launcher.runs.sweep_directory import Sweep
from launcher.search import search

RESULTS = "optimization_results.yaml"  # in the sweep's directory, as hydra-optuna-sweeper writes it


class OptunaSearch:
    """An Optuna search whose trials are the points of a sweep."""

    def __init__(
        self, config: DictConfig, context: HydraContext, task: TaskFunction, *, sampler: Any, direction: Any,
        storage: Any, study_name: str | None, n_trials: int, n_jobs: int, max_failure_rate: float,
        params: Mapping[str, Any] | None, custom_search_space: str | None,
    ) -> None:  # fmt: skip
        """config: the config that all points have in common, with Hydra's settings.
        sampler, direction, storage, study_name, n_trials, n_jobs, max_failure_rate, params, custom_search_space: the
            settings of `hydra.sweeper`, as in hydra-optuna-sweeper.
        Raises ConfigError: a setting cannot be used.
        """
        if not 0 <= max_failure_rate <= 1:
            raise ConfigError(f"hydra.sweeper.max_failure_rate={max_failure_rate}: it must be between 0 and 1")
        self._config = config
        self._sampler, self._storage, self._study_name = sampler, storage, study_name
        self._directions = [direction] if isinstance(direction, str) else list(direction)
        self._trials, self._workers, self._max_failure_rate = n_trials, n_jobs, max_failure_rate
        self._params = params
        self._extend: Callable[[DictConfig, Any], None] | None = (
            get_method(custom_search_space) if custom_search_space else None
        )
        self._launcher: Any = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=context, task_function=task
        )

    def sweep(self, arguments: list[str]) -> None:
        """Runs the search, and prints the best trial.

        Raises ConfigError: no key has several values or a range, or the objective is wrong.
        Raises LauncherError: more trials of a batch failed than max_failure_rate allows, or no trial succeeded.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        space, fixed = space_of(arguments, self._params)
        if self._extend is None:
            require_space(space)
        multirun = getattr(self._launcher, "multirun", None)
        if not isinstance(multirun, Multirun):
            raise ConfigError("hydra/sweeper=optuna needs hydra/launcher=launcher, the default")
        sweep, written = multirun.sweep_of(
            search_space.overrides({key: each.ends()[0] for key, each in space.items()}, fixed)
        )
        fixed = fixed_of(written, space)
        study, left = self._study(sweep, space, fixed)
        first = 0
        while left > 0:
            count = min(left, self._workers)
            self._batch(sweep, study, space, fixed, first, count)
            first, left = first + count, left - count
        if not any(trial.state is TrialState.COMPLETE for trial in study.trials):
            raise LauncherError(f"no trial of {sweep.id} succeeded: {program()} sweep results {sweep.id}")
        _write_results(sweep, study)
        _print_best(sweep, study, space, fixed)

    def _study(self, sweep: Sweep, space: Space, fixed: Sequence[str]) -> tuple[optuna.Study, int]:
        points = sweep.manifest().points if sweep.recorded() else ()
        known = [params for point in points if (params := params_of(point, space, fixed)) is not None]
        settings: Any = OmegaConf.to_container(OmegaConf.create(self._sampler))
        if isinstance(settings.get("seed"), int):
            settings["seed"] += len(known)  # else it would suggest the known points once more
        grid = settings["_target_"] is None
        try:
            sampler = None if grid else instantiate(settings)
        except InstantiationException as error:
            raise ConfigError(f"hydra.sweeper.sampler: {error}") from None
        try:
            study = optuna.create_study(
                study_name=self._study_name or sweep.id, storage=self._storage, sampler=sampler,
                directions=self._directions, load_if_exists=True,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(
                f"hydra.sweeper.storage={self._storage}: {type(error).__name__} {error}; leave it out, the sweep's "
                "runs are enough to continue the search"
            ) from error
        total = self._trials
        if grid:
            count = search_space.size(space)
            if count is None:
                raise ConfigError("hydra/sweeper/sampler=grid needs keys with a list of values: 'workload.lr=0.1,0.01'")
            total = min(total, count)
            known += [each for index in range(total) if (each := _combination(space, index)) not in known]
        stored = [trial.params for trial in study.trials if trial.state is TrialState.COMPLETE]
        stored += [
            trial.system_attrs.get("fixed_params") for trial in study.trials if trial.state is TrialState.WAITING
        ]
        for params in known:
            if params not in stored:
                study.enqueue_trial(params)
        complete = (trial for trial in study.trials if trial.state is TrialState.COMPLETE)
        return study, total - sum(trial.params in known for trial in complete)

    def _batch(
        self, sweep: Sweep, study: optuna.Study, space: Space, fixed: Sequence[str], first: int, count: int
    ) -> None:
        trials = [study.ask(search.distributions_of(space)) for _ in range(count)]
        for trial in trials if self._extend else ():
            assert self._extend is not None
            with open_dict(self._config):
                self._extend(self._config, trial)
        batch = [search_space.overrides(written(trial.params, space), fixed) for trial in trials]
        returns: Sequence[JobReturn] = self._launcher.launch(batch, initial_job_idx=first)
        failures = []
        for trial, each in zip(trials, returns, strict=True):
            try:
                value = each.return_value
                study.tell(trial, [value] if isinstance(value, float) else value)
            except PointFailed as error:
                study.tell(trial, state=TrialState.FAIL)
                failures.append(error)
        if len(failures) / len(returns) > self._max_failure_rate:
            raise LauncherError(
                f"{failures[0]}\nThe search has stopped. Correct the cause, `{program()} sweep rerun {sweep.id}`, and\n"
                "repeat this command; or allow failures: hydra.sweeper.max_failure_rate=0.5 (of the trials that run at "
                "once)"
            )


def written(params: Mapping[str, Any], space: Space) -> dict[str, str]:
    """Returns a trial's parameters as text for overrides, by key."""
    return {key: search.value_text(space[key], value) if key in space else str(value) for key, value in params.items()}


def fixed_of(overrides: Sequence[str], space: Space) -> list[str]:
    """Returns the overrides that all points have.

    overrides: the overrides of a point as they are recorded, without the values of secrets.
    """
    return [each for each in overrides if each.partition("=")[0] not in space]


def params_of(overrides: Sequence[str], space: Space, fixed: Sequence[str]) -> dict[str, Any] | None:
    """Returns a point's values of the keys that are searched; None: the point does not belong to this search."""
    common = sweep_directory.canonical(fixed)
    own = dict(each.split("=", 1) for each in overrides if each not in common)
    if len(own) != len(overrides) - len(common) or not space.keys() <= own.keys():
        return None
    params: dict[str, Any] = {}
    for key, value in own.items():
        if key not in space:  # of a custom_search_space, whose keys are known when Optuna suggests a value
            params[key] = OverridesParser.create().parse_override(f"{key}={value}").value()
        elif space[key].choices and value not in space[key].choices:
            return None
        else:
            params[key] = search.param_of(space[key], value)
    return params


def _combination(space: Space, index: int) -> dict[str, Any]:
    values = search_space.combination(space, index)
    return {key: search.param_of(space[key], each) for key, each in values.items()}


def _best(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.best_trials if len(study.directions) > 1 else [study.best_trial]


def _write_results(sweep: Sweep, study: optuna.Study) -> None:
    if len(study.directions) > 1:
        found: dict[str, Any] = {"solutions": [{"params": each.params, "values": each.values} for each in _best(study)]}
    else:
        found = {"best_params": study.best_params, "best_value": study.best_value}
    OmegaConf.save(OmegaConf.create({"name": "optuna", **found}), sweep.path / RESULTS)


def _print_best(sweep: Sweep, study: optuna.Study, space: Space, fixed: Sequence[str]) -> None:
    manifest = sweep.manifest()
    for trial in _best(study):
        overrides = sweep_directory.canonical(search_space.overrides(written(trial.params, space), fixed))
        values = ", ".join(
            f"{name} {text(value)}" for name, value in zip(manifest.objective, trial.values, strict=True)
        )
        number = manifest.points.index(overrides)
        keys = [sweep_directory.key_of(key) for key in trial.params]
        print(f"best  point {number}, {values}: {sweep_directory.label(overrides, keys)}")
        print(f"run   {single_run(overrides)}")
    print(f"next  {program()} sweep results {sweep.id}")
