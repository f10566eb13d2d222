"""Makes Hydra search the user's config directory before the launcher's. Its files may have keys with dots, as on the
command line:

| a line of user.yaml | becomes, for Hydra |
|---|---|
| `cluster: slurm` (a group and a name) | `override /cluster: slurm` in the file's defaults list |
| `cluster.account: me` | `account: me` in the section `cluster` |
| `nodes: 2`, `cluster: {account: me}` | the same |
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from launcher.errors import ConfigError
from launcher.paths import GROUPS, is_ours, user_config_dir

SCHEME = "launcher-user"


def hydra_configs(values: Mapping[str, Any], groups: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields Hydra configs that, merged in this order, have the effect of a settings file; groups: it may choose."""
    chosen = []
    for key, value in values.items():
        if key in groups and (value is None or isinstance(value, str)):
            chosen.append({f"override /{key}": value})
            continue
        for section in reversed(str(key).split(".")):
            value = {section: value}
        yield value
    if chosen:
        yield {"defaults": [*(values.get("defaults") or ()), *chosen]}


class LauncherUserFiles(FileConfigSource):
    @staticmethod
    def scheme() -> str:
        return SCHEME

    def is_config(self, config_path: str) -> bool:
        # What is no file is refused when it is read, and not passed over
        return os.path.lexists(self._file(config_path))

    def _file(self, config_path: str) -> str:
        return os.path.join(self.path, self._normalize_file_name(config_path))

    def load_config(self, config_path: str) -> ConfigResult:
        try:
            loaded = super().load_config(config_path)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._file(config_path)} is no text in UTF-8: {error}") from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise ConfigError(f"{self._file(config_path)} must have lines of the form KEY: VALUE") from None
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
