"""What survives within one attempt: ranks that die, raise, hang or are stopped; nodes that are lost and come back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.contract.schedulers import local
from tests.contract.test_runs import processes_of
from tests.launch import Launcher, Result, command_lines
from tests.markers import ci, slow

pytestmark = pytest.mark.timeout(240)

ENTRY = ("workload=collective", "workload.entry=tests.chaos.counting:main")
TWO_BY_TWO = ("nodes=2", "procs_per_node=2")


@pytest.fixture(autouse=True)
def nothing_left(launcher: Launcher) -> Iterator[None]:
    """Checks after the test that no process of the run is left within 20 seconds."""
    yield
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 20)


def count(launcher: Launcher, *overrides: str, **environment: str) -> Result:
    return launcher.run(*ENTRY, *overrides, **{"COUNTING_STEPS": "40", **environment})


def begin(launcher: Launcher, *overrides: str, **environment: str) -> None:
    """Starts a run that lasts until `end` cancels it, and waits until it has done some steps."""
    done = launcher.submit(*ENTRY, "wait=false", *overrides, **{"COUNTING_STEPS": "100000", **environment})
    assert done.returncode == 0, done.stderr
    launcher.until(lambda: now(launcher).get("step", 0) >= 3, "the third step")


def end(launcher: Launcher) -> None:
    """Cancels the run that `begin` started, and waits until it is over."""
    assert launcher("cancel", "latest").returncode == 0
    launcher("wait", "latest", "-q")


def now(launcher: Launcher) -> dict[str, Any]:
    """Returns the newest step of the run: its number, and the round in which it was done."""
    return _told(launcher, "now")


def _told(launcher: Launcher, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((launcher.last().path / "chaos" / name).read_text()))
    except (FileNotFoundError, IndexError):
        return {}


def further(launcher: Launcher, round_number: int, timeout: float = 60) -> None:
    """Waits until the run has done steps in a round."""
    what = f"a step in round {round_number}"
    launcher.until(lambda: now(launcher).get("round", 0) >= round_number, what, timeout)


def restarts(launcher: Launcher) -> list[dict[str, Any]]:
    return [event for event in launcher.last().attempts()[-1].events() if event["event"] == "restart"]


@pytest.mark.parametrize(
    ("launcher", "shape", "rank"),
    [
        ("local", TWO_BY_TWO, "3"),
        slow("local", ("procs_per_node=4",), "0"),
        slow("local", (*TWO_BY_TWO, "launch=tasks"), "1"),
        ("slurm", TWO_BY_TWO, "3"),
        ("pbs", TWO_BY_TWO, "3"),
        ("sge", TWO_BY_TWO, "3"),
    ],
    indirect=["launcher"],
)
def test_a_killed_rank_costs_a_restart_and_nothing_else(launcher: Launcher, shape: tuple[str, ...], rank: str) -> None:
    result = count(launcher, *shape, FAULT="SIGKILL", FAULT_RANK=rank)
    assert result.code == 0, result.output
    assert result.metrics["step"] == 40
    assert result.metrics["ranks"] == 160
    assert result.metrics["rounds"] == [[0, 4, 0], [1, 4, 5]]
    (restart,) = restarts(launcher)
    assert (restart["round"], restart["rank"], restart["step"], restart["world_size"]) == (1, int(rank), 5, 4)
    assert (restart["code"], restart["signal"]) == ("signalled", "SIGKILL")
    killed = f"rank {rank} on {restart['host']}: killed by SIGKILL"
    assert f"launcher: {killed} (at step 5); the ranks start again, round 1" in result.output
    assert [event["event"] for event in launcher.last().attempts()[-1].events()].count("fault") == 0


@local
def test_a_plain_init_process_group_works_in_every_round(launcher: Launcher) -> None:
    result = count(launcher, *TWO_BY_TWO, FAULT="SIGKILL", FAULT_TIMES="2", COUNTING_PLAIN="yes")
    assert result.code == 0, result.output
    assert result.metrics["rounds"] == [[0, 4, 0], [2, 4, 5]]  # round 1 saved nothing


@local
def test_the_first_agent_may_be_stopped_for_a_while(launcher: Launcher) -> None:
    """Its store answers no more: the others neither wait for ever nor end; when it is back it is let in."""
    begin(launcher, "nodes=3", "min_nodes=2", "launch.heartbeat=10", COUNTING_STEP_TIME="0.05")
    agent = _told(launcher, "rank-0")["agent"]
    os.kill(agent, signal.SIGSTOP)
    further(launcher, 1)
    alone = now(launcher)["round"]
    os.kill(agent, signal.SIGCONT)
    further(launcher, alone + 1)
    assert [world for _, world, _ in _told(launcher, "state")["rounds"]] == [3, 2, 3]
    end(launcher)


@local
def test_logs_of_every_round_are_kept(launcher: Launcher) -> None:
    result = count(launcher, "procs_per_node=2", FAULT="raise", FAULT_RANK="1")
    assert result.code == 0, result.output
    logs = result.run.attempts()[-1].logs
    assert "the loss is a banana" in (logs / "rank-1.err").read_text()
    assert "the loss is a banana" not in (logs / "rank-1.round-1.err").read_text()
    shown = launcher("logs", "latest", "--rank", "1")
    assert "the loss is a banana" in shown.stdout, shown.stderr


@local
@pytest.mark.parametrize(
    ("environment", "code", "cause", "tried"),
    [
        ({"FAULT": "raise", "FAULT_TIMES": "2"}, 1, "ValueError: the loss is a banana", 1),
        slow({"FAULT": "raise", "FAULT_STEP": "0"}, 1, "ValueError: the loss is a banana", 0),
        slow({"FAULT": "refuse"}, 1, "WorkloadError: this will not do", 0),
        slow({"FAULT": "exit", "FAULT_CODE": "93"}, 93, "exited with code 93", 0),
        slow({"FAULT": "SIGKILL", "FAULT_TIMES": "9"}, 1, "killed by SIGKILL; 2 restarts got no further", 2),
    ],
)
def test_what_would_come_again_ends_the_attempt(
    launcher: Launcher, environment: dict[str, str], code: int, cause: str, tried: int
) -> None:
    result = count(launcher, "nodes=2", "procs_per_node=1", "launch.max_restarts=2", **environment)
    assert result.code == code, result.output
    assert result.cause.startswith("rank 1 on ")
    assert cause in result.cause
    assert len(restarts(launcher)) == tried
    assert launcher.status()["state"] == "failed"


@local
@pytest.mark.parametrize(
    ("fault", "does"),
    [slow("SIGSTOP", "is stopped (state T)"), ("hang", "is in no collective, and others wait for it in one")],
)
def test_a_rank_that_hangs_is_found_and_the_stacks_of_all_are_kept(launcher: Launcher, fault: str, does: str) -> None:
    result = count(launcher, *TWO_BY_TWO, "launch.hang_timeout=3", FAULT=fault, FAULT_RANK="2")
    assert result.code == 0, result.output
    (restart,) = restarts(launcher)
    logs = result.run.attempts()[-1].logs
    assert restart["rank"] == 2
    assert does in restart["message"]
    assert str(logs) in restart["message"]
    stacks = [(logs / f"rank-{rank}.stacks").read_text() for rank in range(4)]
    assert all("in all_reduce" in stacks[rank] for rank in (0, 1, 3)), stacks
    assert ("wrote no stack" if fault == "SIGSTOP" else "_go_wrong") in stacks[2]


@local
@pytest.mark.parametrize(
    ("entry", "limit", "who"),
    [
        ("hangs_before_its_first_step", "launch.start_timeout", "rank 3 on "),
        slow("sleeps", "launch.idle_timeout", "rank 0 on "),
    ],
)
def test_ranks_that_hang_before_their_first_step_are_found(
    launcher: Launcher, entry: str, limit: str, who: str
) -> None:
    """Whether they tell steps or not; nobody waits for the time limit of a collective, which is half an hour."""
    result = launcher.fault(entry, f"{limit}=4", "launch.max_restarts=0", "nodes=2", "procs_per_node=2")
    assert result.code == 1, result.output
    assert result.cause.startswith(who)
    assert (result.fault["code"], result.fault["limit"]) == ("hang", limit)


@local
def test_a_program_without_a_sign_of_life_is_ended(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text("import time\ntime.sleep(600)\n")
    result = launcher.run("workload=program", f"workload.script={tmp_path}/deaf.py", "launch.idle_timeout=4")
    assert result.code == 1, result.output
    assert (result.fault["code"], result.fault["limit"]) == ("hang", "launch.idle_timeout")


WITHOUT_STORE = """import os, signal
import psutil
import launcher
if os.environ["LAUNCHER_ROUND"] == "0":
    for each in psutil.net_connections("tcp"):
        if each.status == "LISTEN" and each.laddr.port == int(os.environ["MASTER_PORT"]):
            os.kill(each.pid, signal.SIGKILL)
launcher.init()
"""


@local
def test_ranks_whose_store_is_killed_start_again_instead_of_waiting_for_it(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITHOUT_STORE)
    result = launcher.run("workload=program", f"workload.script={tmp_path}/program.py")
    assert result.code == 0, result.output
    (restart,) = restarts(launcher)
    assert restart["error"] == "the process of the ranks' store was killed by SIGKILL"


EARLY = """import os, sys, time
import torch, torch.distributed as dist
last = os.environ["RANK"] == os.environ["EARLY"]
if last and os.environ["WHEN"] == "before":
    sys.exit(0)
dist.init_process_group("gloo")
if last and os.environ["WHEN"] == "joined":
    sys.exit(0)
dist.all_reduce(torch.ones(1))
time.sleep(0 if last else 3)
"""


@pytest.mark.parametrize(
    ("launcher", "when"),
    [slow("local", "joined"), slow("local", "before"), ci("slurm", "joined"), ("local", "done")],
    indirect=["launcher"],
)
def test_a_program_of_which_a_rank_exits_with_0_while_the_others_need_it(
    launcher: Launcher, tmp_path: Path, when: str
) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    shape = ("nodes=2", "procs_per_node=2", "launch.idle_timeout=4")
    done = launcher("run", f"{tmp_path}/early.py", *launcher.overrides, *shape, "wait=true", EARLY="2", WHEN=when)
    output = done.stdout + done.stderr
    if when == "done":  # it only ends before the others
        assert done.returncode == 0, output
        return
    assert done.returncode == 1, output
    told = json.loads(launcher("post-mortem", "latest", "--json").stdout)["verdict"]
    assert (told["kind"], told["code"], told["rank"], told["restarts"]) == ("exited-early", "returned_early", 2, [])
    assert told["cause"].startswith(f"rank 2 on {launcher.hosts[1]} exited with code 0 while "), told["cause"]


@local
def test_ranks_that_hang_at_the_same_place_after_a_restart_are_given_up(launcher: Launcher) -> None:
    result = count(
        launcher, *TWO_BY_TWO, "launch.hang_timeout=3", FAULT="hang", FAULT_RANK="2", FAULT_TIMES="9",
        COUNTING_SAVE_EVERY="3",
    )  # fmt: skip
    assert result.code == 1, result.output
    assert len(restarts(launcher)) == 1
    assert (result.fault["code"], result.fault["rank"]) == ("hang", 2)
    assert "after a restart they hung there again" in result.cause


@local
def test_ranks_that_listen_are_told_to_stop_and_leave_by_themselves(launcher: Launcher) -> None:
    """Only one agent gets the signal; the others hear of it. A second signal changes nothing."""
    begin(launcher, *TWO_BY_TWO, "resume.how=never")
    agent = _told(launcher, "rank-2")["agent"]
    os.kill(agent, signal.SIGTERM)
    os.kill(agent, signal.SIGTERM)
    done = launcher("wait", "latest", "-q")
    assert done.returncode == 75, launcher.printed()
    events = launcher.last().attempts()[-1].events()
    (stop,) = [event for event in events if event["event"] == "stop"]
    assert (stop["reason"], stop["signal"]) == ("signal", "SIGTERM")
    assert [event["event"] for event in events].count("fault") == 0
    assert launcher.status()["state"] == "stopped"
    assert _told(launcher, "state")["step"] == now(launcher)["step"]  # all that was done is saved


@local
def test_a_warning_is_handed_on_and_hurts_nobody_who_does_not_listen(launcher: Launcher) -> None:
    begin(launcher, *TWO_BY_TWO, "resume.how=never")
    os.kill(_told(launcher, "rank-0")["agent"], signal.SIGUSR2)
    assert launcher("wait", "latest", "-q").returncode == 75, launcher.printed()


@pytest.mark.slow
@local
def test_a_rank_that_dies_after_the_stop_is_not_started_again(launcher: Launcher) -> None:
    begin(launcher, *TWO_BY_TWO, "resume.how=never", COUNTING_STEP_TIME="5")
    agent, rank = (_told(launcher, "rank-1")[name] for name in ("agent", "pid"))
    os.kill(agent, signal.SIGTERM)
    time.sleep(0.3)
    os.kill(rank, signal.SIGKILL)
    assert launcher("wait", "latest", "-q").returncode == 75, launcher.printed()
    assert not restarts(launcher)


@pytest.mark.parametrize(
    ("launcher", "nodes", "lost"),
    [("local", 3, 0), slow("local", 3, 1), ("pbs", 2, 1), ("sge", 2, 1)],
    indirect=["launcher"],
)
def test_a_lost_agent_shrinks_the_world(launcher: Launcher, nodes: int, lost: int) -> None:
    """Also the first one, whose process has the store."""
    left = nodes - 1
    result = count(
        launcher, f"nodes={nodes}", f"min_nodes={left}", "launch.heartbeat=10",
        FAULT="kill agent", FAULT_RANK=str(lost), COUNTING_STEPS="60",
    )  # fmt: skip
    assert result.code == 0, result.output
    assert result.metrics["rounds"] == [[0, nodes, 0], [1, left, 5]]
    assert result.metrics["ranks"] == 5 * nodes + 55 * left
    host = launcher.hosts[lost % len(launcher.hosts)]
    assert f"without {host} (node {lost}): {left} of {nodes}" in result.output


@local
def test_too_few_nodes_end_the_attempt_and_not_the_run(launcher: Launcher) -> None:
    result = count(launcher, "nodes=2", "launch.heartbeat=10", "resume.how=never", FAULT="kill agent", FAULT_RANK="1")
    assert result.code == 75, result.output
    assert (result.fault["code"], result.fault["host"]) == ("node_ended", launcher.hosts[1])
    assert launcher.status()["state"] == "stopped"


@local
def test_a_node_that_comes_back_is_let_in_at_a_step(launcher: Launcher) -> None:
    begin(launcher, "nodes=2", "min_nodes=1", "launch.heartbeat=10", COUNTING_STEP_TIME="0.05")
    agent = _told(launcher, "rank-1")["agent"]
    os.kill(agent, signal.SIGSTOP)
    further(launcher, 1)
    alone = now(launcher)["round"]
    os.kill(agent, signal.SIGCONT)
    launcher.until(lambda: (_told(launcher, "rank-1").get("round") or 0) > alone, "rank 1 in a later round")
    further(launcher, alone + 1)
    seen = _told(launcher, "state")["rounds"]
    assert [world for _, world, _ in seen] == [2, 1, 2]
    assert "came back" in launcher.printed()
    end(launcher)


@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
def test_four_nodes_become_two_without_a_new_attempt(launcher: Launcher, slurm: SlurmCluster) -> None:
    """Real nodes: slurmd and all that it runs are killed. Slurm takes them out of the job meanwhile."""
    begin(launcher, "nodes=4", "min_nodes=2", "launch.heartbeat=10", "resume.how=never", COUNTING_STEP_TIME="0.05")
    for number, name in enumerate(["node4", "node3"], 1):
        slurm.fail_node(name)
        further(launcher, number)
    assert [world for _, world, _ in _told(launcher, "state")["rounds"]] == [4, 3, 2]
    assert "without node3 (node 2): 2 of 4" in launcher.printed()
    assert len(launcher.last().attempts()) == 1
    end(launcher)


@local
def test_what_a_killed_rank_started_goes_with_it(launcher: Launcher) -> None:
    result = count(launcher, "procs_per_node=2", FAULT="SIGKILL", COUNTING_CHILD="4711")
    assert result.code == 0, result.output
    assert "sleep 4711 " not in command_lines()
