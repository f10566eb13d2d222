"""Replaces the sweeper `hydra/sweeper=optuna` by launcher/cli/optuna_search.py, if that is installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launcher.paths import is_ours


class OptunaSearchSweeper(Sweeper):
    """Optuna's sweeper, which takes the trials of earlier commands from the sweep's runs."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._search: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        # Lazily: Optuna takes seconds
        from launcher.cli.optuna_search import OptunaSearch

        self._search = OptunaSearch(**self._settings)
        self._search.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        return self._search.sweep(arguments)


class OptunaSearchConfig(SearchPathPlugin):
    """Registers our sweeper with the schema of Optuna's, in our own commands only: Hydra loads this in every Hydra app.

    Hydra calls this when all plug-ins are loaded. Their order depends on where they are installed, and of two configs
    with one name the later one is used.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        theirs: Any = sys.modules.get("hydra_plugins.hydra_optuna_sweeper.config")
        if theirs is None or not is_ours(each.path for each in search_path.get_path()):
            return

        @dataclass
        class Settings(theirs.OptunaSweeperConf):
            _target_: str = "hydra_plugins.launcher_optuna.OptunaSearchSweeper"

        ConfigStore.instance().store(group="hydra/sweeper", name="optuna", node=Settings, provider="launcher")
