"""The Python API of the login node: the same as the command line, and the caller's process stays as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

import launcher
from launcher import __main__, api
from launcher.api import as_overrides
from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.monitoring import run_status
from launcher.monitoring.run_status import RunState
from launcher.runs import directory
from tests.unit.clock import Clock
from tests.unit.plans import bare_plan


class Colour(Enum):
    red = "RED"


@pytest.mark.parametrize(
    ("overrides", "keys", "words"),
    [
        (["workload=p2p", "nodes=2"], {}, ["workload=p2p", "nodes=2"]),
        ("workload=p2p", {"nodes": 2}, ["workload=p2p", "nodes=2"]),
        ((), {"workload": "p2p", "time": "1h"}, ["workload=p2p", "time='1h'"]),
        ({"workload.lr": 0.1, "+cluster.environment.A": "${x}"}, {},
         ["workload.lr=0.1", "+cluster.environment.A='\\${x}'"]),
        ({"workload.kwargs.x": 1}, {}, ["++workload.kwargs.x=1"]),
        ((), {"runs_dir": Path("/a b"), "min_nodes": None, "dry_run": True},
         ["runs_dir='/a b'", "min_nodes=null", "dry_run=true"]),
        ({"workload.args": ["--lr", 1e-05, Path("x"), Colour.red]}, {}, ["workload.args=['--lr',1e-05,'x','RED']"]),
        (["~wait"], {}, ["~wait"]),
    ],
)  # fmt: skip
def test_keys_and_values_are_written_as_on_a_command_line(
    overrides: Any, keys: dict[str, Any], words: list[str]
) -> None:
    assert as_overrides(overrides, keys) == words


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["-m", "workload=p2p"], "'-m' is not KEY=VALUE"),
        (["hydra.verbose=true"], "'hydra.verbose=true' is not KEY=VALUE"),
        (["status"], "'status' is not KEY=VALUE"),
        ({"seed": object()}, "seed: a config cannot hold a value of type object"),
    ],
)
def test_what_is_no_override_of_a_run_is_refused(overrides: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        as_overrides(overrides, {})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no scheduler here
    # The command line changes how its process reads YAML; this is as every process begins.
    monkeypatch.setattr(yaml.SafeLoader, "yaml_implicit_resolvers", yaml.resolver.Resolver.yaml_implicit_resolvers)
    return tmp_path


@pytest.mark.parametrize(
    "words", [["workload=p2p", "nodez=2"], ["workload=3"], ["nodes=2"], ["workload=p2p", "seed=1,2"]]
)
def test_an_error_is_the_one_that_the_command_line_prints(
    here: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        launcher.prepare(words)
    assert capsys.readouterr() == ("", "")
    assert __main__.main(words) == raised.value.exit_code
    assert capsys.readouterr().err == f"launcher: {raised.value}\n"


def test_what_is_prepared_is_what_the_command_line_would_submit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload=ddp_mnist", "cluster=slurm", "nodes=2", "run_id=a"]
    prepared = launcher.prepare(words)
    assert capsys.readouterr() == ("", "")
    assert (prepared.id, prepared.path, prepared.plan.nodes) == ("a", here / "runs/a", 2)
    assert prepared.config.workload.name == "ddp_mnist"
    assert not prepared.path.exists()
    assert __main__.main([*words, "dry_run=true"]) == 0
    shown = capsys.readouterr()
    assert prepared.script == shown.out[shown.out.index("#!/bin/bash\n") :]
    assert [f"note: {note}" for note in prepared.notes] == shown.err.splitlines()


def test_the_process_is_afterwards_as_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a Hydra app of its own, with YAML of its own."""
    app = SimpleNamespace(job="its own")
    monkeypatch.setattr(HydraConfig.instance(), "cfg", app)
    before = yaml.safe_load("1:30:00")
    modules = list(sys.path)
    launcher.prepare(workload="p2p")
    with pytest.raises(ConfigError):
        launcher.prepare(workload="p2p", nodez=2)
    assert HydraConfig.instance().cfg is app
    assert yaml.safe_load("1:30:00") == before == 5400
    assert sys.path == modules


def test_what_the_user_submits_is_for_the_command_line(here: Path) -> None:
    with pytest.raises(ConfigError, match="submit=false: it is for the command line"):
        launcher.submit(["workload=p2p", "submit=false"])


def test_a_dry_run_is_not_submitted(here: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("launcher.prepare(...) is a dry run")):
        launcher.submit(["workload=p2p", "dry_run=true"])
    assert not (here / "runs").exists()


# -- runs that are there


@pytest.fixture
def run(here: Path) -> launcher.Run:
    made = directory.Run.create(here / "runs" / "run-1")
    made.write_record(bare_plan(), {}, {"overrides": ["workload=p2p"]})
    return launcher.find("run-1")


def test_a_run_is_found_by_what_commands_call_it(run: launcher.Run, here: Path) -> None:
    assert (run.id, run.path) == ("run-1", here / "runs/run-1")
    assert launcher.find("run", here / "runs") == run == launcher.Run(run.path)
    assert {run} == {launcher.find(str(run.path))}
    with pytest.raises(RunError, match="no run 'other'"):
        launcher.find("other")


def test_metrics_are_what_rank_0_returned(run: launcher.Run) -> None:
    assert run.metrics() == {}
    directory.Run(run.path).write_result({"accuracy": 0.5})
    assert run.metrics() == {"accuracy": 0.5}


def test_logs_are_lines(run: launcher.Run) -> None:
    assert list(run.logs()) == []
    (run.path / "output-7.log").write_bytes("[0] ä\n[1] b\n\n[0] c".encode())
    assert list(run.logs()) == ["[0] ä", "[1] b", "", "[0] c"]
    assert list(run.logs([1])) == ["[1] b"]


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What is seen of a run, one look after the other."""

    def give(*found: RunState | Exception) -> None:
        coming = iter(found)

        def look(*_: object) -> Any:
            state = next(coming)
            if isinstance(state, Exception):
                raise state
            return SimpleNamespace(state=state)

        monkeypatch.setattr(api, "status_of", look)

    return give


def test_waiting_ends_with_the_run(
    run: launcher.Run, states: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, run_status)
    states(RunState.QUEUED, UnavailableError("later"), RunState.UNKNOWN, RunState.STOPPED)
    assert run.wait() is RunState.STOPPED
    assert clock.slept == pytest.approx([0.1, 0.12, 0.144])


def test_waiting_ends_after_its_timeout(
    run: launcher.Run, states: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, run_status)
    states(*[RunState.RUNNING] * 9)
    assert run.wait(timeout=0.3) is RunState.RUNNING
    assert sum(clock.slept) == pytest.approx(0.3)
    states(RunState.RUNNING)
    assert run.wait(timeout=0) is RunState.RUNNING


def test_importing_the_package_loads_neither_torch_nor_hydra() -> None:
    code = (
        "import sys, launcher; launcher.Run; launcher.find\n"
        "print(sorted({'torch', 'hydra', 'omegaconf', 'submitit', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
