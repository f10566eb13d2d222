"""`help`, `--help`, `--version`, and the program's name alone: 80 wide, from the schema, without Hydra and torch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import __main__, __version__
from launcher.cli.key_help import COMMON_KEYS
from launcher.config import keys as config_keys
from launcher.paths import PACKAGE

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Runs a command line in a folder of its own, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", "config")

    def run(*words: str, code: int = 0) -> str:
        assert __main__.main(list(words)) == code
        printed = capsys.readouterr()
        assert printed.err == "" if code == 0 else printed.out == ""
        return printed.err if code else printed.out.replace(str(tmp_path), "")

    return run


LINES = [
    "", "--help", "help", "help --all", "help nodes", "help workload", "help cluster", "help wait", "help lr",
    *(f"help workload={name}" for name in config_keys.WORKLOADS), "help launch=tasks", "help env=default",
    "help cluster.rank_environment",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_it_fits_a_terminal(say: Say, line: str) -> None:
    paths = re.compile(r"\S*/\S*/\S*")  # as long as they are
    assert [text for text in say(*line.split()).splitlines() if len(paths.sub("", text)) > 80] == []


def test_it_is_short_and_the_same_by_all_names(say: Say) -> None:
    text = say("--help")
    assert text == say("-h") == say("help") == say("nodes=2", "--help")
    assert len(text.splitlines()) < 90
    for name in COMMON_KEYS:
        assert re.search(rf"^  {re.escape(name)}=", text, re.MULTILINE), name


@pytest.mark.parametrize("name", ["status", "site"])
def test_a_command_is_explained_as_by_its_option(say: Say, name: str) -> None:
    assert say("help", name) == say(name, "--help") != ""


def test_all_has_every_key_with_its_default(say: Say) -> None:
    text = say("help", "--all")
    sections = {section.prefix.rstrip(".") for section in config_keys.sections()}
    for name in {*config_keys.all_keys()} - sections - {"tracking", "cluster.limits"}:
        assert re.search(rf"^  {re.escape(name)}(=|$| )", text, re.MULTILINE), name
    for words in ("nodes=1 ", "time=1h ", "cluster=local ", "launch.mode=agent ", "workload.lr=0.003 ", "env=default "):
        assert words in text


@pytest.mark.parametrize(
    ("line", "shown", "hidden"),
    [
        ("help nodes", ["  nodes=1 ", "nodes=VALUE, or for all your runs"], ["gpus_per_node"]),
        ("help time=2h", ["  time=1h "], []),
        ("help nodes mem", ["  nodes=1 ", "  mem=null "], []),
        (
            "help lr",
            ["with workload=ddp_mnist:\n  workload.lr=0.1 ", "fsdp_lm:\n  workload.lr=0.003 "],
            ["for all your runs"],
        ),
        ("help workload.backend", ["of every workload:\n  workload.backend=auto "], ["ddp_mnist"]),
        ("help launch", ["launch=NAME: agent, tasks", "  launch.mode=agent "], ["nodes="]),
        ("help cluster.limits", ["  cluster.limits.nodes=null"], ["cluster.queue"]),
        ("help workload", ["workload=NAME: collective, ", "help workload=NAME"], ["workload.lr"]),
        ("help workload=program", ["workload.script=null ", "workload.stop_signal=SIGTERM"], ["workload.lr", "nodes="]),
        ("workload=program --help", ["workload.script=null "], ["nodes="]),
        ("-m workload=ddp_mnist workload.lr=1,2 --help", ["workload.lr=0.1 "], ["workload.script"]),
        ("help launch=tasks", ["  launch.mode=tasks ", "  launch.grace=30 "], ["cluster."]),
        (
            "help cluster=derecho",
            ["  cluster.queue=main ", "  cluster.limits.time=100h ", "scheduler=pbs "],
            ["nodes=1"],
        ),
        ("help wait", ["usage: python -m launcher wait", "  wait=null "], []),
        ("help checkpoint", ["usage: python -m launcher checkpoint", "  checkpoint.keep=2 "], []),
        ("help status", ["usage: python -m launcher status"], []),
        ("run --help", ["usage: python -m launcher run [-m] SCRIPT"], []),
    ],
)
def test_one_thing_is_told_and_nothing_else(say: Say, line: str, shown: list[str], hidden: list[str]) -> None:
    text = say(*line.split())
    assert [words for words in shown if words not in text] == []
    assert [words for words in hidden if words in text] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("help nodse", "there is no key and no command 'nodse'. Did you mean nodes?"),
        ("help stauts", "Did you mean status?"),
        ("help workload=programm", "there is no workload=programm. Did you mean program? Known: collective, "),
        ("workload=ddp_mnits --help", "there is no workload=ddp_mnits. Did you mean ddp_mnist"),
        ("help cluster=mine", "config/cluster/mine.yaml, line 2: this is not valid YAML"),
        ("help cluster=child", "there is no cluster=slrum. Did you mean slurm?"),
    ],
)
def test_a_name_that_there_is_not(say: Say, tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "config" / "cluster").mkdir(parents=True)
    (tmp_path / "config" / "cluster" / "mine.yaml").write_text("defaults: [slurm, _self_\n")
    (tmp_path / "config" / "cluster" / "child.yaml").write_text("defaults: [slrum, _self_]\n")
    assert problem in say(*line.split(), code=2)


def test_a_path_is_not_broken_at_its_hyphens(say: Say) -> None:
    assert "docs/job-script.md" in say("help", "cluster.template")


def test_a_profile_of_the_users_own_has_its_values(say: Say, tmp_path: Path) -> None:
    (tmp_path / "config" / "workload").mkdir(parents=True)
    (tmp_path / "config" / "workload" / "mine.yaml").write_text(
        "defaults: [function, _self_]\ntarget: pkg.train:main\n"
    )
    text = say("help", "workload=mine")
    assert "workload.target=pkg.train:main" in text and "workload.init=true " in text


@pytest.mark.parametrize("line", ["--version", "workload=p2p --version"])
def test_the_version_is_ours(say: Say, line: str) -> None:
    assert say(*line.split()) == f"launcher {__version__}\n"


@pytest.mark.parametrize(
    ("there", "prints", "cluster"),
    [
        ("qsub", "pbs_version = 23.06.06", "pbs"), ("qsub", "SGE 8.1.9", "sge"), ("qstat", "", "slurm"),
        ("squeue", "", "slurm"), ("", "", "slurm"),
    ],
)  # fmt: skip
def test_the_name_alone_says_what_to_do_next(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, prints: str, cluster: str
) -> None:
    if there:
        (tmp_path / there).write_text(f"#!/bin/sh\necho '{prints}'\n")
        (tmp_path / there).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = say()
    for words in ("workload=ddp_mnist", "run train.py -- --lr 0.1", f"cluster={cluster} ", "site init", "--help"):
        assert words in text


@pytest.mark.parametrize("line", ["", "--help", "help --all", "--version"])
def test_neither_hydra_nor_torch_is_loaded(line: str) -> None:
    code = (
        f"import sys; from launcher.__main__ import main; main({line.split()})\n"
        "print([name for name in ('hydra', 'omegaconf', 'torch', 'rich', 'launcher.runs.directory') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")
