"""Checks the user's own environment (env.activate). Its Python runs the ranks instead of the launcher's.

Only the packages in `NEEDED` have to be installed in it. The launcher itself is on PYTHONPATH there. All other commands
of the job script are run by the launcher's own Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import ConfigError

NEEDED = ("torch", "numpy", "submitit")  # imported by launcher.agent, and needed by submitit and torch
OLDEST, NEWEST = (3, 10), (3, 13)
TIMEOUT = 60.0  # seconds for a Python to start from a cold file system
QUERY = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), missing]))
"""
# The job script checks this first (launcher/job/begin.sh), since batch shells do not always have `module`.
MODULE = "type module >/dev/null 2>&1"
# Activates an environment by its path; $launcher_env is set before. `conda init` would need an interactive shell.
ACTIVATE = """\
if [ -d "$launcher_env/conda-meta" ]; then
  export PATH="$launcher_env/bin:$PATH" CONDA_PREFIX="$launcher_env" CONDA_DEFAULT_ENV="$launcher_env" CONDA_SHLVL=1
  unset PYTHONHOME
  for launcher_file in "$launcher_env"/etc/conda/activate.d/*.sh; do
    if [ -r "$launcher_file" ]; then . "$launcher_file"; fi
  done
  true
elif [ -r "$launcher_env/bin/activate" ]; then
  . "$launcher_env/bin/activate"
else
  echo "launcher: $(hostname) sees no environment in $launcher_env (env.activate)" >&2
  false
fi"""


def checked(folder: str, given_as: str = "env.activate=", *, here: bool = False) -> tuple[str, tuple[str, ...]]:
    """Checks a venv or conda environment. Returns its absolute path, and notes for the user.

    If even its parent folder does not exist on this machine, the environment is not checked, and a note says so.

    Args:
        folder: folder of the environment; a relative path refers to the working folder.
        given_as: text in front of the folder in messages.
        here: whether the run is on this machine, so that the environment must be, too.

    Raises:
        ConfigError: the environment does not exist, or ranks could not run in it.
    """
    key = f"{given_as}{folder}"
    path = Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(folder))))
    if not path.exists():
        if path.parent.is_dir():
            raise ConfigError(f"{key}: there is no {path.name} in {path.parent}: name the folder of an environment")
        if here:
            raise ConfigError(f"{given_as}{path} is not there")
        return str(path), (f"{key} is not visible on this machine, and was not checked: the nodes need it",)
    if path.is_file() and path.name == "activate":
        raise ConfigError(f"{key} is a script: name the environment's folder, {path.parents[1]}")
    if not (path / "conda-meta").is_dir() and not (path / "bin/activate").is_file():
        raise ConfigError(
            f"{key} is no environment: it has neither bin/activate (venv, uv) nor conda-meta (conda, mamba)"
        )
    return str(path), _query(key, path)


def _query(key: str, path: Path) -> tuple[str, ...]:
    python = path / "bin/python"
    if not os.access(python, os.X_OK):
        raise ConfigError(f"{key}: it has no Python ({python}): install one into it")
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [str(python), "-c", QUERY, *NEEDED], cwd="/", env=environ, capture_output=True, text=True, timeout=TIMEOUT,
            check=True,
        )  # fmt: skip
        version, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return (f"{key}: its Python does not start here ({error}), and was not checked; it may start on the nodes",)
    if reason := problem(version, missing):
        fix = f": {python} -m pip install {' '.join(missing)}" if missing else ""
        raise ConfigError(f"{key} {reason}{fix}")
    return ()


def problem(version: Sequence[int], missing: Sequence[str]) -> str:
    """Returns why ranks cannot run with an interpreter, as text; empty: they can.

    Args:
        version: major and minor version of the interpreter.
        missing: packages of NEEDED that it lacks.
    """
    if not OLDEST <= tuple(version) <= NEWEST:
        names = [".".join(map(str, each)) for each in (version, OLDEST, NEWEST)]
        return f"has Python {names[0]}: the launcher runs with {names[1]} to {names[2]}"
    return f"lacks {', '.join(missing)}, which every run needs" if missing else ""
