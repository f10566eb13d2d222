"""The folders of which the user trusts all who can replace what is in them (see `ownership`).

`$LAUNCHER_TRUSTED_FOLDERS` and the key cluster.trusted_folders name them. Commands on runs compose no config, and must
know them nonetheless, so the key counts where it stands in a file of settings: user.yaml, or a profile. A run's own
record counts for nothing, since whoever could replace the run has written that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError
from launcher.paths import GROUPS, resource, user_config_dir
from launcher.user_settings import parts

VARIABLE = "LAUNCHER_TRUSTED_FOLDERS"
KEY = "trusted_folders"  # of a profile


def paths() -> list[str]:
    """Their paths, without links. Reads files, so ask only where it matters."""
    named = [each for each in os.environ.get(VARIABLE, "").split(":") if each.startswith("/")]
    return [os.path.realpath(each) for each in (*named, *_in_files())]


def where() -> str:
    """Where a user can name one, in words."""
    return f"name the folder in cluster.{KEY} ({user_config_dir() / 'user.yaml'}, or a profile) or in ${VARIABLE}"


def require_in_files(given: Sequence[str]) -> None:
    """
    Args:
        given: what the config of a run has as cluster.trusted_folders.

    Raises:
        ConfigError: one of them stands in no file of settings.
    """
    known = _in_files() if given else []
    for each in given:
        if each not in known:
            raise ConfigError(
                f"cluster.{KEY}: {each} does not stand in {user_config_dir() / 'user.yaml'}, nor as an absolute path "
                f"in a profile, where commands on runs look: write it there, or into ${VARIABLE}"
            )


def _in_files() -> list[str]:
    files = [(user_config_dir() / "user.yaml", True)]
    for folder in (user_config_dir(), resource("conf")):
        files += [(path, False) for path in sorted((folder / "cluster").glob("*.yaml"))]
    return [each for path, for_all in files for each in _in_file(path, for_all)]


def _in_file(path: Path, for_all: bool) -> Iterator[str]:
    """The absolute paths that a file names; `for_all`: it is user.yaml, and not a profile."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):  # whoever composes a config with it is told
        return
    if KEY not in text:
        return
    try:
        import yaml  # not where no file has the key; functions of submitit's on PBS do without it
    except ImportError:
        return
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    for part in parts(values, GROUPS if for_all else ()) if isinstance(values, dict) else ():
        section: Any = part.get("cluster") if for_all else part
        named = section.get(KEY) if isinstance(section, dict) else None
        if isinstance(named, list):
            yield from (each for each in named if isinstance(each, str) and each.startswith("/"))
