"""Fixtures for golden files: output of the command line, stored as text in this folder. `make golden` rewrites them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

import workloads
from launcher import __main__, __version__, paths
from launcher.runs import directory
from tests.golden import golden
from tests.unit.conftest import known_commit, tmp_path  # noqa: F401 -- of all these tests
from tests.unit.slurm_stand_in import SlurmStandIn

UPDATE = "--golden-update"
TEMPLATE = """\
{% extends "sbatch.sh.j2" %}
{% block setup %}
{{ super() }}
echo "$LAUNCHER_NAME on $(hostname)"
{% endblock %}
{% block after %}
echo "ended with $LAUNCHER_EXIT_CODE"
{% endblock %}
"""
PROFILE = """\
defaults: [slurm, _self_]
name: mine
partition: gpu
account: my_project
setup: ["module load cuda/12.4"]
environment: {OMP_NUM_THREADS: 8}
limits: {nodes: 16, time: 1-00:00:00}
"""
# A qsub that accepts every job and runs none.
QSUB = """\
#!/bin/sh
[ "$1" = --version ] && echo "pbs_version = 23.06.06" || echo 1.srv
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write the golden files anew (make golden)")


def pytest_configure(config: pytest.Config) -> None:
    golden.update = config.getoption(UPDATE, default=False)


@dataclass(frozen=True)
class Shown:
    """The exit code and the output of a command, without text that differs between machines."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class World:
    """The simulated machine of all golden files: folders, a user, programs on PATH; the fixture `world` enters it.

    Attributes:
        folder: the directory that contains it all; in golden files its path is /world.
    """

    folder: Path

    def run(self, *words: str) -> Shown:
        """Runs the launcher's command line in this process.

        Args:
            words: the arguments. `{world}` in them stands for the folder.
        """
        out, err = io.StringIO(), io.StringIO()
        words = tuple(word.replace("{world}", str(self.folder)) for word in words)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = __main__.main(list(words))
        return Shown(code, self.plain(out.getvalue()), self.plain(err.getvalue()))

    def plain(self, text: str) -> str:
        """Returns a text with placeholders for this machine's paths and the launcher's version."""
        for name, instead in (
            (str(self.folder), "/world"),
            (f"{Path(workloads.__file__).parent}/digits", "/world/checkout/workloads/digits"),
            (f"launcher {__version__}", "launcher VERSION"),
            (f"lib-{__version__}", "lib-VERSION"),
        ):
            text = text.replace(name, instead)
        return text


@pytest.fixture(scope="session")
def _world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The folders of the simulated machine: a checkout and an installation of the launcher, a project, programs."""
    folder = tmp_path_factory.mktemp("world").resolve()
    SlurmStandIn(folder)  # makes bin/
    for package in ("checkout/launcher", "installed/launcher"):
        (folder / package).mkdir(parents=True)
    for name in ("conf", "templates"):
        for link in (folder / "checkout" / name, folder / "installed/launcher" / name):
            link.symlink_to(paths.resource(name))
    for name, text in {
        "project/train.py": "print(1)\n",
        "project/pkg/__init__.py": "",
        "project/pkg/train.py": "def main(lr):\n    pass\n",
        "config/cluster/mine.yaml": PROFILE,
        "mine.sh.j2": TEMPLATE,
        "torch.tar": "an archive",
        "nodes": "node1\nnode2\nnode3\nnode4\n",
        "bin/qsub": QSUB,
        "bin/qstat": "#!/bin/sh\nexit 1\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("qsub", "qstat"):
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin/git").symlink_to(str(shutil.which("git")))
    subprocess.run(["git", "init", "--quiet", folder / "project"], check=True)
    return World(folder)


@pytest.fixture
def environment() -> Mapping[str, str]:
    """Additional environment variables of the simulated machine; test modules override this fixture."""
    return {}


@pytest.fixture
def installed() -> bool:
    """Whether the launcher is installed, and not a checkout; test modules override this fixture."""
    return False


@pytest.fixture
def world(
    _world: World, environment: Mapping[str, str], installed: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """The simulated machine. During the test, this process has a user's environment, and a project as its directory."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {
        "HOME": f"{_world.folder}/home",
        "USER": "me",
        "PATH": "../bin:/usr/bin:/bin",  # seen from the project, so that it is the same on all machines
        "LAUNCHER_CONFIG_DIR": f"{_world.folder}/config",
        "LAUNCHER_CACHE_DIR": f"{_world.folder}/cache",
        "LAUNCHER_RUNS_DIR": "/scratch/me/runs",
        **environment,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(_world.folder / "project")
    monkeypatch.setattr(paths, "PACKAGE", _world.folder / ("installed" if installed else "checkout") / "launcher")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "argv", ["launcher"])
    monkeypatch.setattr(directory, "_uid", lambda: 0)  # a part of the job's token
    # The schema changes how YAML is read, for this process.
    readers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    monkeypatch.setattr(yaml.SafeLoader, "yaml_implicit_resolvers", readers)
    umask = os.umask(0o022)
    yield _world
    os.umask(umask)
    GlobalHydra.instance().clear()


@pytest.fixture
def show(world: World) -> Callable[..., Shown]:
    """A function that runs the launcher's command line, asserts that it exits with 0, and returns its output."""

    def run(*words: str) -> Shown:
        shown = world.run(*words)
        assert shown.code == 0, shown.err
        return shown

    return run
