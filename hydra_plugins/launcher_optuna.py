"""Registers the sweeper `hydra/sweeper=optuna`, which has the settings of hydra-optuna-sweeper, with Hydra.

hydra-optuna-sweeper needs Optuna 2. This sweeper replaces it, even where it is installed.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher.errors import ConfigError
from launcher.paths import is_ours

# See https://optuna.readthedocs.io/en/stable/reference/samplers/ for these settings; users add others with +KEY=VALUE.
SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {"_target_": "optuna.samplers.TPESampler", "seed": None, "n_startup_trials": 10,
            "n_ei_candidates": 24, "multivariate": False, "constant_liar": True},
    "random": {"_target_": "optuna.samplers.RandomSampler", "seed": None},
    "cmaes": {"_target_": "optuna.samplers.CmaEsSampler", "seed": None, "x0": None, "sigma0": None,
              "warn_independent_sampling": True, "use_separable_cma": False},
    "nsgaii": {"_target_": "optuna.samplers.NSGAIISampler", "seed": None, "population_size": 50, "mutation_prob": None,
               "crossover_prob": 0.9, "swapping_prob": 0.5},
    "grid": {"_target_": None},  # all combinations, in order
}  # fmt: skip
SWEEPER: dict[str, Any] = {
    "_target_": "hydra_plugins.launcher_optuna.OptunaSearchSweeper", "_recursive_": False,
    "defaults": [{"sampler": "tpe"}],
    "direction": "minimize", "storage": None, "study_name": None, "n_trials": 20, "n_jobs": 2, "max_failure_rate": 0.0,
    "params": None, "custom_search_space": None,
}  # fmt: skip


class OptunaSearchSweeper(Sweeper):
    """The sweeper in Hydra's interface. `launcher.cli.optuna_search.OptunaSearch` does the work."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._search: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install 'launcher[optuna]'")
        # Lazily: Optuna takes 0.2 s
        from launcher.cli.optuna_search import OptunaSearch

        self._search = OptunaSearch(config, hydra_context, task_function, **self._settings)

    def sweep(self, arguments: list[str]) -> Any:
        return self._search.sweep(arguments)


class OptunaSearchConfig(SearchPathPlugin):
    """Registers the configs of the sweeper and its samplers with Hydra, in the launcher's own commands only.

    Hydra loads this plug-in in every Hydra app of the same Python. It calls `manipulate_search_path` after all plug-ins
    are loaded, so these configs replace those of hydra-optuna-sweeper with the same names: of two configs with one name
    Hydra uses the later one.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if not is_ours(each.path for each in search_path.get_path()):
            return
        store = ConfigStore.instance()
        store.store(group="hydra/sweeper", name="optuna", node=SWEEPER, provider="launcher")
        for name, settings in SAMPLERS.items():
            store.store(group="hydra/sweeper/sampler", name=name, node=settings, provider="launcher")
