"""Another Python for the ranks: what is looked at before anything is submitted, and what the script does."""

from __future__ import annotations

import dataclasses
import os
import sys
import venv
from pathlib import Path

import pytest

from launcher import __version__
from launcher.config.schema import Env
from launcher.environment import programs, snapshot
from launcher.errors import ConfigError
from launcher.paths import own_module
from launcher.runs.directory import Run
from launcher.submission.prepare import Inputs, make_plan
from launcher.submission.render import setup_lines
from tests.unit.plans import SITE, make_config
from tests.unit.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def python(folder: Path, text: str) -> None:
    """A stand-in for an environment's Python, that prints a text whatever it is asked."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin/python").write_text(f"#!/bin/bash\ncat <<'EOF'\n{text}\nEOF\n")
    (folder / "bin/python").chmod(0o755)
    (folder / "bin/activate").touch()


def test_an_environment_with_all_that_is_needed_is_taken_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path / "en v", "[[3, 12], []]")
    monkeypatch.chdir(tmp_path)
    assert programs.checked("en v") == (str(tmp_path / "en v"), ())
    config = make_config(env=Env(activate="en v"))
    config, notes = Inputs().with_environment(config)
    plan = make_plan(config, SITE)
    assert (plan.node_python, plan.python, notes) == (f"{tmp_path}/en v/bin/python", SITE.python, ())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, r"there is no env in .*: name the folder of an environment"),
        (lambda path: path.mkdir(), r"neither bin/activate \(venv, uv\) nor conda-meta \(conda\)"),
        (lambda path: (path / "conda-meta").mkdir(parents=True), r"has no Python \(.*/env/bin/python\)"),
        (lambda path: python(path, "[[3, 9], []]"), r"has Python 3\.9: the launcher runs with 3\.10 to 3\.13"),
        (lambda path: python(path, '[[3, 12], ["torch"]]'), r"lacks torch.*env/bin/python -m pip install torch"),
    ],
)
def test_one_that_ranks_could_not_run_in_is_refused(tmp_path: Path, make, told: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "env")
    with pytest.raises(ConfigError, match=f"env.activate={tmp_path}/env.*{told}"):
        programs.checked(str(tmp_path / "env"))


def test_the_script_of_an_environment_is_not_the_environment(tmp_path: Path) -> None:
    python(tmp_path / "env", "")
    with pytest.raises(ConfigError, match=rf"is a script: name the environment's folder, {tmp_path}/env"):
        programs.checked(str(tmp_path / "env/bin/activate"))


@pytest.mark.parametrize("what", ["not seen", "does not start"])
def test_what_cannot_be_looked_into_is_told(tmp_path: Path, what: str) -> None:
    folder = tmp_path / ("scratch/env" if what == "not seen" else "env")
    if what == "does not start":
        python(folder, "no answer")
    path, (note,) = programs.checked(str(folder))
    assert path == str(folder)
    assert ("is not visible on this machine" in note) == (what == "not seen")


def test_a_real_environment_is_asked_what_it_has(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    with pytest.raises(ConfigError, match="lacks torch, numpy, submitit"):
        programs.checked(str(tmp_path / "env"))


def test_the_order_is_the_clusters_lines_modules_environment_own_lines() -> None:
    env = Env(modules=["cuda/12", "a b"], activate="/env", setup=["export X=1"])
    plan = make_plan(make_config(env=env, cluster={"setup": ["true"]}), SITE)
    assert [each.words for each in setup_lines(plan)] == [
        "set-up line 1 of cluster=here", "finding the command `module` (env.modules)",
        "module load cuda/12 (env.modules)", "module load a b (env.modules)", "activating /env (env.activate)",
        "line 1 of env.setup",
    ]  # fmt: skip
    assert setup_lines(plan)[3].line == "module load 'a b'"


def test_modules_are_loaded_where_a_batch_shell_does_not_know_the_command(sandbox: Sandbox) -> None:
    (sandbox.folder / "lmod/init").mkdir(parents=True)
    (sandbox.folder / "lmod/init/bash").write_text('module() { export "LOADED=${LOADED-}$1 $2;"; [ "$2" != bad ]; }\n')
    outcome = sandbox.execute(sandbox.plan(env={"modules": ("bad",)}), LMOD_PKG=str(sandbox.folder / "lmod"))
    assert outcome.code == 93
    assert "launcher: module load bad (env.modules) failed on" in outcome.stderr
    assert outcome.events()[1]["message"] == "module load bad (env.modules) failed"
    outcome = sandbox.execute(sandbox.plan(env={"modules": ("cuda/12", "a b")}), LMOD_PKG=str(sandbox.folder / "lmod"))
    assert (outcome.code, outcome.environment["LOADED"]) == (0, "load cuda/12;load a b;")


def test_without_a_command_module_it_is_told_so(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(sandbox.plan(env={"modules": ("cuda",)}), MODULESHOME="/nowhere")
    if outcome.code == 0:
        pytest.skip("this machine has modules")
    assert "finding the command `module` (env.modules) failed" in outcome.stderr


@pytest.mark.parametrize("kind", ["venv", "conda"])
def test_an_environment_is_activated_by_its_path(sandbox: Sandbox, kind: str) -> None:
    folder = sandbox.folder / "my env"
    if kind == "venv":
        venv.create(folder, with_pip=False, symlinks=True)
    else:
        (folder / "conda-meta").mkdir(parents=True)
        (folder / "etc/conda/activate.d").mkdir(parents=True)
        (folder / "etc/conda/activate.d/cuda.sh").write_text("export FROM_ACTIVATE_D=yes\nfalse\n")
    setup = ("set -eu", 'export SEEN="$PATH"') if kind == "venv" else ('export SEEN="$PATH"',)
    outcome = sandbox.execute(sandbox.plan(env={"activate": str(folder), "setup": setup}), PYTHONHOME="/old")
    assert outcome.code == 0, outcome.stderr
    assert outcome.environment["SEEN"].startswith(f"{folder}/bin:")
    assert "PYTHONHOME" not in outcome.environment
    assert outcome.environment["VIRTUAL_ENV" if kind == "venv" else "CONDA_PREFIX"] == str(folder)
    assert outcome.environment.get("FROM_ACTIVATE_D") == (None if kind == "venv" else "yes")
    assert outcome.arguments[-6:-1] == [f"{folder}/bin/python", "-u", *own_module("launcher.agent")]


def test_an_environment_that_a_node_does_not_see_is_named(sandbox: Sandbox) -> None:
    outcome = sandbox.execute(sandbox.plan(env={"activate": "/no/where"}))
    assert outcome.code == 93
    assert "sees no environment in /no/where (env.activate)" in outcome.stderr


def test_an_installed_launcher_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(tmp_path / "env", "[[3, 12], []]")
    config, _ = Inputs().with_environment(make_config(env=Env(activate=str(tmp_path / "env"))))
    site = dataclasses.replace(SITE, run_dir=str(tmp_path / "runs/run-1"))
    plan = snapshot.into_plan(make_plan(config, Inputs().with_code(config, site)))
    (tmp_path / "runs/run-1").mkdir(mode=0o700, parents=True)
    snapshot.take(plan)
    for name in ("launcher/agent/__main__.py", "workloads/p2p.py"):
        assert os.path.exists(f"{tmp_path}/runs/run-1/lib-{__version__}/{name}")
    assert sys.version_info[:2] >= programs.OLDEST
    monkeypatch.setattr(snapshot, "__version__", "99")  # a resumed run comes with the one that is installed by then
    plan = snapshot.into_plan(make_plan(config, Inputs().with_code(config, site)))
    snapshot.take(plan)
    assert os.path.exists(f"{tmp_path}/runs/run-1/lib-99/launcher/agent/__main__.py")
    assert Run.create(tmp_path / "runs/run-1").path.is_dir()  # one that was killed before its record was written


@pytest.mark.parametrize("key", ["activate", "container"])
def test_a_run_of_this_machine_has_only_what_is_here(tmp_path: Path, key: str) -> None:
    env = Env(**{key: f"{tmp_path}/gone/x"})
    Inputs().with_environment(make_config(env=env))  # nodes of a cluster may see it
    with pytest.raises(ConfigError, match=rf"env\.{key}={tmp_path}/gone/x is not there"):
        Inputs().with_environment(make_config(env=env, cluster={"scheduler": "local"}))
