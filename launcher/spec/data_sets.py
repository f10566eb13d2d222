"""Collects the data sets that the hooks of all workloads list, ours and the user's, for `launcher data` and `doctor`.

workload_hook.py defines what a hook lists. If two data sets have the same name, the one of our workloads is used.
"""

from __future__ import annotations

import re
from pathlib import Path

from launcher.errors import ConfigError, LauncherError
from launcher.paths import resource, user_config_dir
from launcher.spec.workload_hook import KnownDataSet, load

# The line `hook: module:Class` of a workload's file. Loading a YAML parser would take longer than the whole command.
_HOOK = re.compile(r"""^hook:[ \t]*(["']?)([^\s"'#]+:[^\s"'#]+)\1[ \t]*(?:#.*)?$""", re.MULTILINE)


def of_all_workloads() -> tuple[dict[str, KnownDataSet], tuple[str, ...]]:
    """Returns the data sets of all workloads by name, and the errors of hooks that could not be loaded."""
    known: dict[str, KnownDataSet] = {}
    problems = []
    for path in (path for folder in (resource("conf"), user_config_dir()) for path in _files(folder / "workload")):
        try:
            for each in load(_hook_in(path)).data_sets():
                known.setdefault(each.name, each)
        except LauncherError as error:
            problems.append(f"{path}: {error}")
    return known, tuple(problems)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _hook_in(path: Path) -> str | None:
    try:
        found = _HOOK.search(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {error}") from None
    return found[2] if found else None
