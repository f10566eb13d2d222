"""Makes Hydra look into the user's own config folder before ours."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from launcher.paths import is_ours, user_config_dir


class LauncherUserConfig(SearchPathPlugin):
    """Prepends the folder, so that a profile or user.yaml in it takes the place of one of ours with the same name.

    Hydra loads this in every Hydra app of the same Python, and other people's are none of our user's settings.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if is_ours(each.path for each in search_path.get_path()) and user_config_dir().is_dir():
            search_path.prepend("launcher-user", f"file://{user_config_dir()}")
