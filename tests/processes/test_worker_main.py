"""What a rank does before and after its workload, forked or in an interpreter of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import processes
from launcher.agent.workers import Fresh, WorkerExit, WorkerGroup
from launcher.config.schema import Collective, DDPMnist, Function, Precision, Program, Sync, Workload
from launcher.rendezvous.rounds import Placement
from launcher.runs.directory import Run
from launcher.runs.lease_and_locks import LeaseLost
from launcher.worker import main as worker_main
from launcher.worker.hang_diagnosis import Stacks
from launcher.worker.heartbeat import Pulse
from launcher.worker.main import ignored_signals, workload_config
from launcher.worker.user_script import is_final
from tests.launch import ROOT
from tests.markers import ci
from tests.unit.plans import bare_plan, plan_of
from workloads.across_ranks import WorkloadError


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (WorkloadError("no"), True),
        (LeaseLost("gone"), True),
        (ValueError("banana"), False),
        (RuntimeError("peer"), False),
    ],
)
def test_an_error_that_would_come_again_is_known(error: Exception, answer: bool) -> None:
    assert is_final(error) is answer


@pytest.mark.parametrize(("lives", "names"), [(0, "SIGUSR1 SIGUSR2"), (1, "SIGUSR1 SIGUSR2 SIGTERM SIGINT")])
def test_what_a_rank_does_not_hear_before_it_listens(lives: int, names: str) -> None:
    assert [number.name for number in ignored_signals(lives)] == names.split()


@pytest.mark.parametrize(
    "workload",
    [
        Workload("w", "m:f", seed=3),
        DDPMnist("w", "m:f", seed=3, precision=Precision.bfloat16, sync=Sync.manual, lr=0.5, threads=2),
        Collective("w", "m:f", seed=3, op=["all_reduce"], groups=["node"]),
    ],
)
def test_a_workload_gets_its_config_back_from_the_plan(workload: Workload) -> None:
    again = workload_config(plan_of(workload=workload))
    assert again == workload
    assert type(again) is type(workload)


# -- a rank from its start to its end


class Agent:
    """What a rank has from its agent, for a run in `folder`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.run = Run.create(folder / "run")
        self.plan = bare_plan(
            run_dir=str(self.run.path),
            checkpoint={"dir": str(folder / "checkpoints")},
            launch={"rendezvous_timeout": 60},
            **fields,
        )
        self.run.write_record(self.plan, {}, {})
        monkeypatch.setenv("LAUNCHER_RUN_DIR", str(self.run.path))
        monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
        monkeypatch.setenv("LAUNCHER_TASK", "5")
        self.logs, self.pulse, self.stacks = folder / "logs", Pulse(2), Stacks(2)
        self.group = WorkerGroup(self.logs, fresh=self._fresh)

    def _shared(self, place: int) -> dict[str, int]:
        return {"pulse_file": self.pulse.share(), "stacks_file": self.stacks.file(place), "lives": 0, "memory_file": -1}

    def _fresh(self, me: Placement) -> Fresh:
        shared = self._shared(me.place)
        command = worker_main.fresh_command(me.place, **shared)
        return Fresh(command, [shared["pulse_file"], shared["stacks_file"]])

    def ends(self) -> list[WorkerExit]:
        environment = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
        ranks = [Placement(place, place, {**environment, "RANK": str(place)}) for place in range(2)]
        self.group.start(
            ranks,
            lambda me: worker_main.run_rank(self.plan, me.place, **self._shared(me.place)),
            ignore=ignored_signals(0),
        )
        self.group.open_gate()
        assert self.group.reap(90) == []
        ended = sorted(self.group.poll(), key=lambda each: each.place)
        self.group.close()
        return ended


PROGRAM = """
import os, sys
print(os.environ["RANK"], os.environ["LAUNCHER_RESTART"], [n for n in os.environ if n.startswith("LAUNCHER_TASK")])
if os.environ["RANK"] == "1":
    raise ValueError("banana")
"""


@pytest.mark.parametrize(("how", "returned"), [("exec", None), ("fork", {}), ci("fresh", None)])
def test_a_program_takes_the_place_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, returned: dict[str, Any] | None
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    params = plan_of(workload=Program("program", "m:f", seed=0, script=str(tmp_path / "train.py"))).workload.params
    agent = Agent(
        tmp_path / "a", monkeypatch, workload={"kind": "Program", "params": {**params, "fork": how == "fork"}}
    )
    monkeypatch.setattr(processes, "unsafe_to_fork", lambda: "is a test" if how == "fresh" else "")
    done, failed = agent.ends()
    output = [(agent.logs / f"rank-{rank}.{kind}").read_text() for rank in (0, 1) for kind in ("out", "err")]
    assert output[0] == "0 0 []\n", output
    assert output[1] == "", output
    assert (done.code, done.returned, done.error) == (0, returned, None)
    assert failed.code == 1
    assert failed.error is not None
    assert failed.error.line == "ValueError: banana"
    own = f'  File "{tmp_path}/train.py", line 5, in <module>\n    raise ValueError("banana")\nValueError: banana\n'
    assert failed.error.traceback.endswith(own)
    assert failed.error.traceback == output[3]
    if how != "fork":  # where a function of this file stands above it
        assert output[3] == f"Traceback (most recent call last):\n{own}"


FUNCTION = """
from launcher.worker import heartbeat as pulse
from workloads.across_ranks import WorkloadError

def main(refuse):
    pulse.mine().beat(41)
    if refuse:
        raise WorkloadError("no such thing")
    return {"loss": 0.5, 0: 0.93}
"""


@pytest.mark.parametrize(("how", "refuse"), [("fork", False), ("fork", True), ci("fresh", True)])
def test_a_function_is_called_in_the_rank_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, refuse: bool
) -> None:
    (tmp_path / "mine_alone.py").write_text(FUNCTION)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.syspath_prepend(str(tmp_path))
    configured = Function(
        "function", "workloads.function:main", seed=0, target="mine_alone:main", kwargs={"refuse": refuse}, init=False
    )
    plan = plan_of(workload=configured)
    agent = Agent(
        tmp_path / "a",
        monkeypatch,
        workload={"kind": "Function", "entry": plan.workload.entry, "params": plan.workload.params},
    )
    monkeypatch.setattr(processes, "unsafe_to_fork", lambda: "is a test" if how == "fresh" else "")
    for ended in agent.ends():
        if refuse:
            assert ended.error is not None
            assert (ended.code, ended.error.line, ended.error.final) == (1, "WorkloadError: no such thing", True)
            assert ended.error.traceback.splitlines()[-3].endswith('mine_alone.py", line 8, in main')
        else:
            assert (ended.code, ended.returned, ended.error) == (0, {"loss": 0.5, "0": 0.93}, None)
    assert [(sign.step, sign.gives_up) for sign in agent.pulse.signs()] == [(41, refuse)] * 2
    assert "mine_alone" not in sys.modules
