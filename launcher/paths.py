"""Where things are on this machine: conf/, templates/, the user's folders; how the launcher's modules are started."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

PACKAGE = Path(__file__).resolve().parent
LONGEST_NAME = 64  # characters of the name or id of a run or sweep
SENDING = ".sent-"  # prefix of a folder beside the runs, with a file that is being sent to another machine
GROUPS = ("workload", "cluster", "launch", "env")  # Hydra config groups: folders of conf/, of which one file is chosen


def absolute(name: str) -> Path:
    """Returns the path that a user means by a name: `~` is the home, `..` is resolved without following links."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def resource(name: str) -> Path:
    """Returns the folder `conf` or `templates`: inside the package if installed, next to it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def is_ours(search_path: Iterable[str]) -> bool:
    """Returns whether Hydra's search path has the launcher's conf/. If not, another Hydra app is running."""
    return any(path.removeprefix("file://") == str(resource("conf")) for path in search_path)


def code_root() -> Path | None:
    """Returns the checkout that jobs must put on PYTHONPATH to import launcher; None: launcher is installed."""
    root = PACKAGE.parent
    return root if (root / "conf").is_dir() else None


def user_config_dir() -> Path:
    """Returns $LAUNCHER_CONFIG_DIR, else the platform's per-user configuration folder (~/.config/launcher on Linux)."""
    return folder_in("LAUNCHER_CONFIG_DIR") or _of_user("config")


def user_data_dir() -> Path:
    return _of_user("data")


def user_cache_dir() -> Path:
    """Returns $LAUNCHER_CACHE_DIR, else the platform's per-user cache folder (~/.cache/launcher on Linux)."""
    return folder_in("LAUNCHER_CACHE_DIR") or _of_user("cache")


def folder_in(variable: str) -> Path | None:
    """Returns the folder that an environment variable names, an absolute path; None: it is empty or not set."""
    folder = os.environ.get(variable)
    return Path(folder).expanduser().absolute() if folder else None


def _of_user(kind: str) -> Path:
    import platformdirs

    try:
        return Path(getattr(platformdirs, f"user_{kind}_path")("launcher"))
    except RuntimeError as error:  # there is no HOME, and the system does not know the user, as in some containers
        raise ConfigError(str(error)) from None


def default_runs_dir() -> Path:
    """Returns the folder of run directories: $LAUNCHER_RUNS_DIR, else `runs` in the per-user data folder."""
    return folder_in("LAUNCHER_RUNS_DIR") or user_data_dir() / "runs"


def choices(group: str) -> list[str]:
    """Returns the options of a config group: the names of its YAML files in the launcher's and the user's folder."""
    folders = (resource("conf") / group, user_config_dir() / group)
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def new_id(name: str, now: datetime | None = None) -> str:
    """Returns a new run id, such as `ddp_mnist-20261121-074601-3f9c`: name, date, time, random digits."""
    from datetime import datetime

    moment = now or datetime.now()
    return with_ending(name, f"-{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}")


def with_ending(name: str, ending: str) -> str:
    """Returns a name with an ending; one that would be too long for an id is cut."""
    return name[: LONGEST_NAME - len(ending)] + ending


# The same as `python -P -m`, which only Python 3.11 and later know. User code may need the working folder: it is put
# back on sys.path before that code is imported.
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    'import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def own_module(name: str) -> list[str]:
    return ["-c", _CODE, name]
