"""The user's trusted folders: the user trusts everybody who can replace what is in them (see `ownership`).

They are named by `$LAUNCHER_TRUSTED_FOLDERS` and by the config key cluster.trusted_folders. Commands on existing runs
do not compose a config, so they read the key from the user's settings files: user.yaml and cluster profiles. The key in
a run's record is not used, because another user who could replace the run could also write its record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError
from launcher.paths import GROUPS, resource, user_config_dir
from launcher.user_settings import hydra_configs

VARIABLE = "LAUNCHER_TRUSTED_FOLDERS"
KEY = "trusted_folders"  # key of a profile


def paths() -> list[str]:
    """Returns the real paths of all trusted folders. It reads all settings files, so call it only if needed."""
    named = [each for each in os.environ.get(VARIABLE, "").split(":") if each.startswith("/")]
    return [os.path.realpath(each) for each in (*named, *_in_files())]


def where() -> str:
    """Returns text for error messages that says where the user can name a trusted folder."""
    return f"name the folder in cluster.{KEY} ({user_config_dir() / 'user.yaml'}, or a profile) or in ${VARIABLE}"


def require_in_files(given: Sequence[str]) -> None:
    """Checks that the trusted folders of a config are in a settings file, where later commands look for them.

    Raises ConfigError: a folder is in no settings file.
    """
    known = _in_files() if given else []
    for each in given:
        if each not in known:
            raise ConfigError(
                f"cluster.{KEY}: {each} is neither in {user_config_dir() / 'user.yaml'}, nor as an absolute path in a "
                f"profile, where commands on runs look: write it there, or into ${VARIABLE}"
            )


def _in_files() -> list[str]:
    files = [(user_config_dir() / "user.yaml", True)]
    for folder in (user_config_dir(), resource("conf")):
        files += [(path, False) for path in sorted((folder / "cluster").glob("*.yaml"))]
    return [each for path, user_file in files for each in _in_file(path, user_file)]


def _in_file(path: Path, user_file: bool) -> Iterator[str]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):  # composing a config reports the error
        return
    if KEY not in text:
        return
    try:
        # Lazily: 10 ms, and most folders have no file with the key
        import yaml
    except ImportError:
        return
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    for part in hydra_configs(values, GROUPS if user_file else ()) if isinstance(values, dict) else ():
        section: Any = part.get("cluster") if user_file else part
        named = section.get(KEY) if isinstance(section, dict) else None
        if isinstance(named, list):
            yield from (each for each in named if isinstance(each, str) and each.startswith("/"))
