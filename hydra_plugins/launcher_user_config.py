"""Makes Hydra search the user's config directory before the launcher's. Its files may have keys with dots, as on the
command line (`cluster.account: my_project`)."""

from __future__ import annotations

import dataclasses
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from launcher.paths import GROUPS, is_ours, user_config_dir
from launcher.user_settings import hydra_configs

SCHEME = "launcher-user"


class LauncherUserFiles(FileConfigSource):
    """Reads the files of the user's config directory; see launcher/user_settings.py for their format."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        loaded = super().load_config(config_path)
        if not isinstance(loaded.config, DictConfig):  # a list, which Hydra refuses
            return loaded
        values: Any = OmegaConf.to_container(loaded.config)
        groups = GROUPS if "/" not in config_path else ()
        return dataclasses.replace(loaded, config=OmegaConf.merge({}, *hydra_configs(values, groups)))


class LauncherUserConfig(SearchPathPlugin):
    """Prepends the user's config directory to Hydra's search path: its files replace the launcher's of the same name.

    Hydra loads this plug-in in every Hydra app of the same Python, so it acts in the launcher's own commands only.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if is_ours(each.path for each in search_path.get_path()) and user_config_dir().is_dir():
            search_path.prepend("launcher-user", f"{SCHEME}://{user_config_dir()}")
