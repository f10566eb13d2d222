"""Each kind of event, as its writer writes it: the job script, agents, ranks, and what decides whether a run goes on.

The parts of agents that are put in place of the others and of the ranks are those of the unit tests.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher import Env
from launcher import attach as node_session
from launcher.agent.attempt import Binder
from launcher.agent.policy import History, NextRound
from launcher.agent.preflight import Preflight, PreflightVerdict
from launcher.agent.preflight_checks import CheckLevel, NodeCheck
from launcher.agent.rank_watch import GPU_SECONDS, GpuWatch
from launcher.binding.hardware import Gpu, Nic
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.checkpoint.format import CheckpointError
from launcher.checkpoint.loading import report_restored
from launcher.errors import NO_RETRY
from launcher.failures.codes import (
    FaultCode,
    NextReason,
    PreflightThen,
    StopReason,
)
from launcher.job import requeue, wait_for_others
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Rounds, placements
from launcher.runs import directory, event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Events
from launcher.runs.events import (
    Accused,
    Continues,
    Fault,
    NodeFinding,
    Observation,
    Stays,
    Stop,
)
from launcher.worker import hang_diagnosis, shared_with_agent
from launcher.worker.tracking import Reporter
from tests.golden.golden import check
from tests.unit.agent import test_attempt as agents
from tests.unit.agent.test_attempt import MEMBERS, script
from tests.unit.agent.test_supervisor import GRACE, HANG, HEARTBEAT, KILL, TERM, Job, raised
from tests.unit.binding.test_masks import flat
from tests.unit.plans import bare_plan
from tests.unit.sandbox import DRIVER, Sandbox
from tests.unit.worker.test_debugger import adds, in_thread, rank, terminal, until_prompt

__all__ = ["rank", "script"]  # fixtures


def frozen(name: str, run: Path, attempt: int = 0) -> None:
    """Compares the events of an attempt with a golden file, with placeholders for what differs between machines."""
    lines = []
    folder = run / "attempts" / str(attempt)
    for path in sorted(folder.rglob("*.jsonl")):
        assert event_files.problems(path) == []
        lines += [f"{path.relative_to(folder)}: {line}\n" for line in path.read_text().splitlines()]
    text = "".join(lines)
    for pattern, value in (
        (r'"(time|seconds|blocked|since)": [\d.e+-]+', r'"\1": 1.5'), (re.escape(str(run)), "/site/runs/r"),
        (r'"(torch|id|socket|where)": "[^"]*"', r'"\1": "<\1>"'), (r'"(pid|bytes)": \d+', r'"\1": 1234'),
        (r'"memory": \{[^}]*\}', '"memory": "<bytes>"'), (re.escape(f'"{socket.gethostname()}"'), '"login1"'),
    ):  # fmt: skip
        text = re.sub(pattern, value, text)
    check(f"formats/written/events/{name}.txt", text)


# -- agents


def killed(job: Job) -> None:
    job.agents[1].workers.end(0, -KILL)
    job.run(1)


def raises(job: Job) -> None:
    job.agents[1].workers.end(0, 1, error=raised())
    job.run(1)


def loses_a_peer(job: Job) -> None:
    job.agents[1].workers.end(0, 1, error=raised("Connection closed by peer", lost_peer=True))
    job.run(HEARTBEAT + GRACE)


def exits(job: Job) -> None:
    job.agents[0].workers.end(1, 3)
    job.run(1)


def needs_no_retry(job: Job) -> None:
    job.agents[0].workers.end(1, NO_RETRY)
    job.run(1)


def hangs(job: Job) -> None:
    job.run(HANG + GRACE + HEARTBEAT)


def loses_a_node(job: Job) -> None:
    job.cut(1)
    job.run(HEARTBEAT)


def leaves(job: Job) -> None:
    job.leave(0)
    job.leave(1)
    job.run(1)


def takes_a_node_back(job: Job) -> None:
    for agent in job.agents:
        agent.line.inbox.append({"type": "regroup", "back": [{"host": "node2", "node": 2}]})
    job.run(0.3)
    leaves(job)


def is_told_to_stop(job: Job) -> None:
    job.agents[0].signals.send(TERM)
    job.run(GRACE + HEARTBEAT)


@pytest.mark.parametrize(
    ("happens", "keys"),
    [
        (killed, {}), (raises, {"launch": {"max_restarts": 0}}), (loses_a_peer, {"launch": {"max_restarts": 0}}),
        (exits, {"launch": {"max_restarts": 0}}), (needs_no_retry, {}), (hangs, {"launch": {"max_restarts": 0}}),
        (loses_a_node, {"min_nodes": 2}), (leaves, {}), (takes_a_node_back, {}), (is_told_to_stop, {"listen": False}),
    ],
)  # fmt: skip
def test_what_an_agent_tells(
    tmp_path: Path, happens: Callable[[Job], None], keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_diagnosis, "WRITES", 0.1)
    happens(Job(tmp_path, **keys))
    frozen(f"agent-{happens.__name__.replace('_', '-')}", tmp_path)


def test_an_attempt_that_goes_on_without_a_node(script: Any, tmp_path: Path) -> None:
    smaller = dataclasses.replace(agents.RENDEZVOUS, members=MEMBERS[:2])
    script.steps |= {
        "supervise": [NextRound(History(round=1), (2,)), agents.DONE], "next": [(History(round=1), smaller)],
    }  # fmt: skip
    agents.ended(tmp_path)
    frozen("attempt", tmp_path)
    check("formats/written/exit_code", (tmp_path / "attempts/0/exit_code").read_text())


def test_the_cpus_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.agent.attempt.torch_build", lambda: "")  # whatever torch is installed
    tells = Events(attempt_of(tmp_path), "node-0")
    one = Gpu("0000:03:00.0", 1)
    node = dataclasses.replace(flat(4, numas=2), gpus=(one,), nics=(Nic("hsn0", "hsn0", "0000:04:00.0", 1, 200),))
    ranks = placements(MEMBERS, 0, master=("node0", 1), run_id="r", round_number=0, environ={})
    for asked in (1, 0):
        binder = Binder(
            bare_plan(gpus_per_node=asked, launch={"bind": "auto" if asked else "none"}), {}, lambda: (node, {0, 1, 2})
        )
        tells(binder.bind(MEMBERS, 0, ranks)[1])
    frozen("bound", tmp_path)


def test_a_round(tmp_path: Path) -> None:
    assert Rounds(tmp_path / "rounds").claim(1, MEMBERS[0], 20001, MEMBERS)
    check("formats/written/rounds/1.json", (tmp_path / "rounds/1.json").read_text())


def test_gpus_that_are_not_used_and_then_are(tmp_path: Path) -> None:
    watch = GpuWatch("node0", 4, Events(attempt_of(tmp_path), "node-0"), iter((False, False, True)).__next__)
    for now in (0.0, GPU_SECONDS, 2 * GPU_SECONDS):
        watch.look(range(4), now)
    frozen("gpus", tmp_path)


NO_GPU = Observation("torch sees 0 GPUs")


def test_a_preflight(tmp_path: Path) -> None:
    told = SimpleNamespace(
        _events=Events(attempt_of(tmp_path), "node-0"), _own=MEMBERS[0], _round=0, _nodes=MEMBERS
    )  # fmt: skip
    low = "/tmp has 1,024 MiB free"
    found = [NodeCheck("space", CheckLevel.WARNING, low, ms=12.0)]
    bad = (NodeFinding("node2 (node 2)", "node2", "device", NO_GPU),)
    warnings = (NodeFinding("node0 (node 0)", "node0", "space", Observation(low)),)
    verdict = PreflightVerdict(PreflightThen.WITHOUT, bad, (2,), warnings)
    Preflight._report(told, verdict, found, 1.25, first=True)  # type: ignore[arg-type]
    frozen("preflight", tmp_path)


# -- ranks


def attempt_of(folder: Path) -> directory.Attempt:
    attempt = directory.Attempt(directory.Run(folder), 0)
    attempt.events_file("x").parent.mkdir(parents=True)
    return attempt


def test_progress_and_results(tmp_path: Path) -> None:
    reporter = Reporter(attempt_of(tmp_path), 0)
    reporter._tracking = None
    reporter.progress(1, 100, {"loss": 2.5, "epoch": 0})
    reporter.evaluated(1, {"accuracy": 0.5})
    reporter.report({"accuracy": 0.5, "losses": [2.5, 2.0]})
    frozen("progress", tmp_path)
    check("formats/written/result.json", (tmp_path / "result.json").read_text())


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> directory.Attempt:
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    return attempt_of(tmp_path)


def test_checkpoints(environment: directory.Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
    state = {"weight": torch.zeros(4)}
    one = Checkpointer(tmp_path / "checkpoints", alone, identity={})
    one.save(1, state, wait=True)
    one.save(2, state, wait=True)
    one.close()
    (tmp_path / "checkpoints/step-000000002/manifest.json").write_text("{")

    def fence() -> None:
        raise RuntimeError("another attempt has the run")

    other = Checkpointer(tmp_path / "checkpoints", alone, identity={}, fence=fence)
    other.load({"weight": torch.zeros(4)})
    with pytest.raises(CheckpointError):
        other.save(3, state, wait=True)
    with pytest.raises(CheckpointError):
        other.close()
    monkeypatch.setenv(shared_with_agent.REACHED, "4")
    report_restored(0, 3, 0.0, memory=True, received=2)
    frozen("checkpoints", tmp_path)


def test_a_breakpoint(rank: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    ended = in_thread(rank, lambda: adds(rank))
    user = terminal(rank)
    until_prompt(user)
    user.send(line="c")
    ended()
    user.leave()
    frozen("breakpoint", tmp_path)


# -- the job script, and what it calls


@pytest.mark.parametrize(
    ("name", "keys", "outcome"),
    [
        ("done", {"cluster": {"setup": ("echo begins",)}}, {}),
        *(("failed", {}, {"code": 1}), ("killed", {}, {"code": 137})),
        ("setup-failed", {"cluster": {"setup": ("false",)}}, {}), ("no-folder", {"workdir": "/nowhere"}, {}),
        ("told-to-stop", {"cluster": {"setup": ("kill -TERM $$",)}}, {}),
    ],
)  # fmt: skip
def test_what_a_script_tells(tmp_path: Path, name: str, keys: dict[str, Any], outcome: dict[str, Any]) -> None:
    sandbox = Sandbox(tmp_path / "site")
    plan = sandbox.plan(checkpoint={"dir": f"{sandbox.run_dir}/checkpoints"}, **keys)
    (sandbox.run_dir / "checkpoints/step-1").mkdir(parents=True)
    sandbox.python.write_text(f"{DRIVER}exit 1\n")  # launcher.job.requeue, which cannot be started
    sandbox.pauses()
    sandbox.execute(plan, **outcome)
    frozen(f"script-{name}", sandbox.run_dir)


@pytest.mark.parametrize("how", ["never", "auto"])
def test_what_becomes_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    run = directory.Run.create(tmp_path / "run")
    plan = bare_plan(
        resume={"how": how},
        cluster={"scheduler": "local"},
        run_dir=str(run.path),
        checkpoint={"dir": str(run.path / "checkpoints")},
    )
    run.write_record(plan, {}, {})
    attempt = attempt_of(run.path)
    event_files.append(attempt.events_file("rank-0"), kinds.Progress(step=7, total=100))
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(run.path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    requeue.main(str(run.path), stop_requested=False)
    frozen(f"requeue-{how}", run.path)


def test_a_run_whose_turn_has_come(environment: directory.Attempt, tmp_path: Path) -> None:
    (tmp_path / "submitit").mkdir()
    environment.run.write_record(bare_plan(run_dir=str(tmp_path)), {}, {})
    assert wait_for_others.main() == 0
    frozen("after", tmp_path)


WHOLE = (
    Fault(
        code=FaultCode.RENDEZVOUS_TIMEOUT,
        host="node1",
        node=0,
        accused=(Accused(host="node2", node=1),),
        message="node2 (node 1) did not reach node1 (node 0) in time: 1 of 2 arrived",
    ),
    Fault(code=FaultCode.NOT_STARTED, host="node1", rank=1, error="no"),
    Fault(code=FaultCode.RETURNED_EARLY, host="node2", rank=1, accused=(Accused(host="node2", rank=1, node=1),)),
    Fault(code=FaultCode.RAISED, host="node1", rank=0, error="EOFError", reading="/ckpt/model.pt"),
    Fault(code=FaultCode.USAGE, host="node1", rank=0, exit_code=2, error="train.py: error: argument --lr"),
    Stop(reason=StopReason.UNREADABLE, error="EIO", killed_on="node1", grace=30.0),
    Stays(what="stays", reason=NextReason.NOT_SUBMITTED, error="invalid account"),
    Stays(what="given_up", reason=NextReason.NO_PROGRESS, limit=60, saves_in="/ckpt"),
    Stop(reason=StopReason.SIGNAL, host="node1", rank=3, step=7),
    Stop(reason=StopReason.SIGNAL, host="node1", signal="SIGTERM"),
    Continues(what="elsewhere", reason=NextReason.REQUEUED, job="7"),
    Stays(what="stays", reason=NextReason.SCHEDULER_ENDS, scheduler="Slurm", state="PREEMPTED"),
    Stays(what="given_up", reason=NextReason.MAX_ATTEMPTS, attempts=3),
    kinds.SetupFailed(line=3, host="node1", message="module load cuda (env.modules) failed", code=1),
    kinds.Met(ranks=4, members=2, host="node1", interface="eth0"),
    kinds.Resized(round=2, members=2, world_size=4, size=2, back=(kinds.Place(host="node2", node=1),), spares=1),
    kinds.Pruned(step=600),
    kinds.Breakpoint(rank=1, host="node1", where="train.py:7", socket="/tmp/s", job="7", post_mortem=True),
    kinds.AttachRequest(id="0123456789abcdef", what="rank", rank=3),
    kinds.Refused(token="t", error="sbatch: no such partition"),
    Stays(what="given_up", reason=NextReason.NO_PROGRESS, step=7, limit=60),
)


def test_fields_that_the_others_have_not(tmp_path: Path) -> None:
    tells = Events(attempt_of(tmp_path), "x")
    for event in WHOLE:
        tells(event)
    frozen("whole", tmp_path)


def test_a_question_to_the_agents(tmp_path: Path) -> None:
    node_session.send(attempt_of(tmp_path), node_session.STACKS, 1)
    frozen("attach", tmp_path)
