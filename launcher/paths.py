"""Where things are on this machine: our own conf/ and templates/, and the user's folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
GROUPS = ("workload", "cluster", "launch", "env")  # folders of conf/ of which a config chooses one file each


def resource(name: str) -> Path:
    """Our folder `conf` or `templates`: inside the package when installed, beside it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def is_ours(search_path: Iterable[str]) -> bool:
    """Whether Hydra searches our conf/: else it is another Hydra app, in a Python that has us installed."""
    return any(path.removeprefix("file://") == str(resource("conf")) for path in search_path)


def code_root() -> Path | None:
    """The checkout that a job must put on PYTHONPATH to import us, or None when we are installed."""
    root = PACKAGE.parent
    return root if (root / "conf").is_dir() else None


def user_config_dir() -> Path:
    """$LAUNCHER_CONFIG_DIR, else the platform's per-user folder (~/.config/launcher on Linux)."""
    if folder := os.environ.get("LAUNCHER_CONFIG_DIR"):
        return Path(folder).expanduser().absolute()
    import platformdirs

    return platformdirs.user_config_path("launcher")


def user_data_dir() -> Path:
    """The platform's per-user folder for data (~/.local/share/launcher on Linux)."""
    import platformdirs

    return platformdirs.user_data_path("launcher")


def user_cache_dir() -> Path:
    """$LAUNCHER_CACHE_DIR, else the platform's per-user folder for what can be made again (~/.cache/launcher)."""
    if folder := os.environ.get("LAUNCHER_CACHE_DIR"):
        return Path(folder).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("launcher")


def default_runs_dir() -> Path:
    """$LAUNCHER_RUNS_DIR, else `runs` in the per-user data folder."""
    if folder := os.environ.get("LAUNCHER_RUNS_DIR"):
        return Path(folder).expanduser().absolute()
    return user_data_dir() / "runs"


def choices(group: str) -> list[str]:
    """The names in one of our config groups, the user's own included."""
    folders = (resource("conf") / group, user_config_dir() / group)
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})
