"""What a submission asks for, in hours; and the question whether to make it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.__main__ import main
from launcher.config.schema import Program, Resume, ResumeHow
from launcher.plan import limits
from launcher.plan.limits import Cost
from tests.unit.plans import plan_of
from tests.unit.slurm_stand_in import SlurmStandIn

NEVER = Resume(how=ResumeHow.never)
PROGRAM = Program("program", "m:f", seed=1, script="train.py")
ATTEMPTS = "per attempt, up to 100 attempts (resume.max_attempts)"


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        (
            {"nodes": 2, "gpus_per_node": 4, "time": "12h"},
            ["2 nodes x 4 GPUs x 12h = 24 node-hours, 96 GPU-hours", ATTEMPTS],
        ),
        ({"time": "90", "resume": NEVER}, ["1 node x 1 CPU x 1h30m = 1.5 node-hours, 1.5 core-hours"]),
        (
            {"nodes": 3, "procs_per_node": 4, "cpus_per_proc": 2, "time": "20m", "resume": NEVER},
            ["3 nodes x 8 CPUs x 20m = 1 node-hour, 8 core-hours"],
        ),
        (
            {"gpus_per_node": 1, "time": "2h", "resume": Resume(how=ResumeHow.chain, max_attempts=5)},
            ["5 jobs x 1 node x 1 GPU x 2h = 10 node-hours, 10 GPU-hours"],
        ),
        (
            {"time": "45s", "resume": Resume(max_attempts=1)},
            ["1 node x 1 CPU x 45s = 0.0125 node-hours, 0.0125 core-hours"],
        ),
        ({"workload": PROGRAM}, ["1 node x 1 CPU x 1h = 1 node-hour, 1 core-hour", ATTEMPTS]),
        ({"workload": replace(PROGRAM, resumable=False)}, ["1 node x 1 CPU x 1h = 1 node-hour, 1 core-hour"]),
        ({"nodes": 1000, "gpus_per_node": 8, "time": "2-00:00:00", "resume": NEVER},
         ["1000 nodes x 8 GPUs x 48h = 48,000 node-hours, 384,000 GPU-hours"]),
    ],
)  # fmt: skip
def test_one_run(keys: dict[str, Any], lines: list[str]) -> None:
    assert limits.lines([plan_of(**keys)]) == lines


def test_points_of_a_sweep() -> None:
    small, large = (plan_of(nodes=n, gpus_per_node=2, time="3h", resume=NEVER) for n in (1, 2))
    assert limits.lines([small] * 5) == ["5 x 1 node x 2 GPUs x 3h = 15 node-hours, 30 GPU-hours"]
    assert limits.lines([small, large]) == ["2 points = 9 node-hours, 18 GPU-hours"]


def test_a_note_says_that_a_machine_is_too_small_for_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert limits.crowded(plan_of(procs_per_node=16)) == ()
    note = "17 ranks share the 2 CPUs and the memory of this machine"
    assert limits.crowded(plan_of(procs_per_node=17)) == (note,)


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        (Cost(24, 96, 192), (96, "GPU-hours")),
        (Cost(24, 0, 192), (24, "node-hours")),
        (Cost(24, 0, 192) + Cost(1, 2, 3), (2, "GPU-hours")),
    ],
)
def test_what_confirm_above_counts(asked: Cost, counted: tuple[float, str]) -> None:
    assert asked.counted == counted


@dataclass
class Done:
    """A command that is over."""

    code: int
    out: str
    err: str


Submit = Callable[..., Done]


@pytest.fixture
def slurm_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIn:
    stand_in = SlurmStandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", stand_in.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return stand_in


@pytest.fixture
def submit(
    slurm_commands: SlurmStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Submit]:
    """Submits something of 2 node-hours; with an answer stdin is a terminal on which it is typed."""

    def run(*words: str, answer: str | None) -> Done:
        os.write(master, (answer or "").encode())
        terminal = os.dup(slave) if answer is not None else os.open(os.devnull, os.O_RDONLY)
        with open(terminal) as stdin, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            code = main([
                *words, "workload=collective", "cluster=slurm", "cluster.check=false", "nodes=2", "time=1h"
            ])  # fmt: skip
        return Done(code, *capsys.readouterr())

    master, slave = os.openpty()
    yield run
    os.close(slave)
    os.close(master)


ASKS = "requests   2 nodes x 1 CPU x 1h = 2 node-hours, 2 core-hours\n"


def test_no_leaves_nothing_behind(submit: Submit, slurm_commands: SlurmStandIn, tmp_path: Path) -> None:
    done = submit("confirm_above=1", answer="n\n")
    assert done.code == 3 and done.out.startswith(ASKS)
    assert done.err.endswith(
        "More than confirm_above=1 node-hours. Submit? [y/N] "
        "launcher: nothing was submitted (--yes submits without a question)\n"
    )
    assert slurm_commands.calls() == 0 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "answer", "asked"),
    [
        (("confirm_above=1",), "y\n", True),
        (("confirm_above=2",), "n\n", False),
        (("confirm_above=1", "--yes"), "n\n", False),
        (("confirm_above=1",), None, False),
        (("-m", "workload.root=0,1", "confirm_above=1", "--yes"), "n\n", False),
        (("-m", "workload.root=0,1", "confirm_above=3"), "y\n", True),
    ],
)
def test_it_is_asked_only_where_it_is_much(
    submit: Submit, slurm_commands: SlurmStandIn, words: tuple[str, ...], answer: str | None, asked: bool
) -> None:
    done = submit(*words, answer=answer)
    assert (done.code, slurm_commands.calls()) == (0, 1), done.err
    assert ("Submit? [y/N]" in done.err) == asked
    each = ASKS if "-m" not in words else "requests   2 x 2 nodes x 1 CPU x 1h = 4 node-hours, 4 core-hours\n"
    assert done.out.startswith(each)
