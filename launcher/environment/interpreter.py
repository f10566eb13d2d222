"""The Python that ranks run with, where it is another one than the launcher's: an environment of the user's own.

Only what runs in the agents needs to be installed in it (`NEEDED`). The launcher itself comes along on PYTHONPATH, and
what the job's script does besides is done by the launcher's own Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import ConfigError

NEEDED = ("torch", "numpy", "submitit")  # what launcher.agent imports, and what that needs
OLDEST, NEWEST = (3, 10), (3, 13)
PATIENCE = 60.0  # seconds for a Python to start from a cold file system
ASK = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), missing]))
"""
# The job script looks for it first (templates/parts/setup.sh.j2), for batch shells do not always have it.
MODULE = "type module >/dev/null 2>&1"
# By its path alone: no `conda init`, which would want an interactive shell. In front of it stands ENVIRONMENT=PATH.
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


def checked(folder: str) -> tuple[str, tuple[str, ...]]:
    """The environment's whole path, and what its user should know.

    Raises:
        ConfigError: it is not there, although its place is seen from here; or lacks something.
    """
    key = f"env.activate={folder}"
    path = Path(os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(folder))))
    if not path.exists():
        if path.parent.is_dir():
            raise ConfigError(f"{key}: there is no {path.name} in {path.parent}: name the folder of an environment")
        return str(path), (f"{key} is not seen from here, and not looked into: nodes have to see it",)
    if path.is_file() and path.name == "activate":
        raise ConfigError(f"{key} is a script: name the environment's folder, {path.parents[1]}")
    if not (path / "conda-meta").is_dir() and not (path / "bin/activate").is_file():
        raise ConfigError(
            f"{key} is no environment: it has neither bin/activate (venv, uv) nor conda-meta (conda, mamba)"
        )
    return str(path), _asked(key, path)


def _asked(key: str, path: Path) -> tuple[str, ...]:
    """Asks the environment's Python for its version and what is missing; that of another machine may not start here."""
    python = path / "bin/python"
    if not os.access(python, os.X_OK):
        raise ConfigError(f"{key}: it has no Python ({python}): install one into it")
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [str(python), "-c", ASK, *NEEDED], cwd="/", env=environ, capture_output=True, text=True, timeout=PATIENCE,
            check=True,
        )  # fmt: skip
        version, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return (f"{key}: its Python could not be asked here ({error}); nodes may be able to start it",)
    if told := problem(version, missing):
        fix = f": {python} -m pip install {' '.join(missing)}" if missing else ""
        raise ConfigError(f"{key} {told}{fix}")
    return ()


def problem(version: Sequence[int], missing: Sequence[str]) -> str:
    """Why ranks could not run with a Python that has answered ASK; empty: they can. Pure."""
    if not OLDEST <= tuple(version) <= NEWEST:
        names = [".".join(map(str, each)) for each in (version, OLDEST, NEWEST)]
        return f"has Python {names[0]}: the launcher runs with {names[1]} to {names[2]}"
    return f"lacks {', '.join(missing)}, which every run needs" if missing else ""
