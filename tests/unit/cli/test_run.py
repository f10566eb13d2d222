"""`run SCRIPT`: which overrides it stands for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.cli import submit
from launcher.cli.help import Parser, of_run
from launcher.cli.submit import script_overrides
from launcher.errors import ConfigError
from launcher.paths import PACKAGE
from launcher.plan.build import check_name, command, name_of
from launcher.runs.directory import Run
from tests.unit.plans import bare_plan, with_fields


@pytest.mark.parametrize(
    ("script", "module", "given", "meant"),
    [
        ("train.py", False, [], ["name='train'", "workload=program", "workload.script='train.py'"]),
        (
            "a b/it's.py",
            False,
            ["nodes=2"],
            ["name='it_s'", "workload=program", "workload.script='a b/it\\'s.py'", "nodes=2"],
        ),
        ("pkg.train", True, [], ["name='train'", "workload=program", "workload.module='pkg.train'"]),
        ("t.py", False, ["name=x", "~wait"], ["workload=program", "workload.script='t.py'", "name=x", "~wait"]),
        ("t.py", False, ["workload=mine"], ["name='t'", "workload.script='t.py'", "workload=mine"]),
    ],
)
def test_a_script_is_a_run_of_its_name(script: str, module: bool, given: Sequence[str], meant: Sequence[str]) -> None:
    assert script_overrides(script, given, module=module) == meant


def test_what_hydra_shows_ends_quietly_with_its_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "launcher", "--info", "config"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=PACKAGE.parent)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_in_a_folder_of_hydras_is_no_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("lr=0.1,exp=1/train.py")
    with pytest.raises(ConfigError, match="name the script before its KEY=VALUE"):
        script_overrides(str(script), [])
    script.parent.mkdir()
    script.touch()
    assert script_overrides(str(script), ["nodes=2"]) == [
        "name='train'", "workload=program", f"workload.script='{script}'", "nodes=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("./dir/train.v2.py", "train.v2"),
        ("run", "run"),
        ("my train.py", "my_train"),
        ("-x.py", "x"),
        (".hidden", "hidden"),
        ("..py", "program"),
        ("ü.py", "_"),
        ("7.py", "7"),
        ("x" * 80 + ".py", "x" * 64),
    ],
)
def test_the_name_is_one_that_every_system_takes(script: str, name: str) -> None:
    assert check_name("name", name_of(script)) == name


@pytest.mark.parametrize("option", ["-m", "--multirun", "--yes"])
@pytest.mark.parametrize("behind", [(), ("--", "-m", "run")])
def test_options_stand_in_front_of_the_command_as_well(
    option: str, behind: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(submit, "main", lambda words: asked.append(words) or 0)
    for words in ([option, "run"], ["run", option]):
        assert main([*words, "train.py", "seed=1,2", *behind]) == 0
    assert asked[0] == asked[1]
    assert f"--{option.removeprefix('--').replace('-m', 'multirun')}" in asked[0]


@pytest.mark.parametrize(
    "line",
    [
        "launcher run train.py",
        "launcher run train.py nodes=2 -- --lr 0.1 --name 'a b' 'it'\"'\"'s' -- '${x}' '\\'",
        "launcher run --module pkg.train name=other",
        "launcher run 'a b/t.py' workload.flags.lr=0.1 -- model=big",
        "python -m launcher workload=program workload.args='[--lr]'",
        "launcher workload=ddp_mnist workload.lr=0.1 cluster.environment.A=1",
    ],
)
def test_a_command_to_copy_is_what_one_would_type(line: str) -> None:
    program, _, typed = line.partition("launcher ")
    name, *words = shlex.split(typed)
    if name == "run":
        parser = Parser("run", None)
        of_run(parser)
        given = parser.parse(words)
        behind = [] if given.arguments is None else ["--", *given.arguments]
        words = [*script_overrides(given.script, given.overrides, module=given.module), *behind]
    else:
        words = [name, *words]
    recorded = submit.command_line(words).words
    assert shlex.split(command(f"{program}launcher", recorded)) == shlex.split(line)


# -- resume


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a script that is over."""
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "own"))
    (tmp_path / "t.py").touch()
    run = Run.create(tmp_path / "runs" / "r")
    words = submit.command_line([*script_overrides("t.py", ["cluster=local", "seed=3"]), "--", "--lrr", "1"]).words
    plan = bare_plan(workdir=str(tmp_path), workload={"kind": "Program"}, run_id="r")
    run.write_record(plan, {}, {"overrides": list(words), "token": "t"})
    return run


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ([], "['--lrr','1']"),
        (["--", "--lr", "a b", "--", "seed=5"], "['--lr','a b','--','seed=5']"),
        (["--"], "[]"),
    ],
)
def test_arguments_of_resume_are_those_of_the_script_instead_of_its_own(
    ended: Run, typed: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(ended.path), "dry_run=true", *typed]) == 0
    assert re.search(rf"^workload.args +{re.escape(shown)}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "typed", "problem"),
    [
        ("Program", ["--lr", "3"], "there is no option '--lr'. Known: --help, "),
        ("Program", ["--lr", "3"], "Arguments of your own program follow `--`: python -m launcher resume RUN "),
        ("Program", ["workload.args=[a]", "--", "b"], "exclude each other"),
        ("P2P", ["--", "b"], "r is no run of a script of yours, so it has no arguments (--): use KEY=VALUE"),
    ],
)
def test_what_resume_does_not_take(
    ended: Run, kind: str, typed: list[str], problem: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = with_fields(ended.plan(), workload={"kind": kind})
    monkeypatch.setattr(Run, "plan", lambda _: plan)
    assert main(["resume", str(ended.path), *typed]) == 2
    assert problem in capsys.readouterr().err


# -- options that `run` does not have


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--nodes=2"], "there is no option '--nodes'. Known: --help, "),
        (["--nodes=2"], "Keys have no dashes: nodes=VALUE. Arguments of your own program follow `--`: python -m"),
        (["--time", "2h"], "Keys have no dashes: time=VALUE. Arguments"),
        (["--partition=gpu"], "Keys have no dashes: cluster.partition=VALUE. Arguments"),
        (["--dry-run"], "Keys have no dashes: dry_run=VALUE"),
        (["--lr", "0.1"], "--config-dir. Arguments of your own program follow `--`: python -m"),
        (["--multirn"], "Did you mean --multirun?"),
        (["-p", "gpu"], "there is no option '-p'. Known: --help, "),
        (["-l", "select=2:ncpus=8"], "Arguments of your own program follow `--`: python -m"),
    ],
)
def test_options_of_schedulers_and_of_the_script_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "t.py", *words]) == 2
    assert problem in capsys.readouterr().err


def test_options_behind_two_dashes_are_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(submit, "main", lambda words: asked.append(words) or 0)
    assert main(["run", "t.py", "nodes=2", "--", "--nodes=3", "-N", "4"]) == 0
    assert asked[0][3:] == ["nodes=2", "--", "--nodes=3", "-N", "4"]
