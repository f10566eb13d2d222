"""What starts tasks without srun: every task learns its place, and the tasks end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher import errors
from launcher.schedulers.tasks import environments
from launcher.schedulers.topology import derive


def test_every_task_learns_its_place() -> None:
    assert environments(["a", "b"], 2) == [
        {"LAUNCHER_HOSTS": "a,b", "LAUNCHER_TASKS": "4", "LAUNCHER_TASK": str(task), "LAUNCHER_NODE": str(task // 2)}
        for task in range(4)
    ]


@pytest.mark.parametrize("hosts", [["h"], ["a", "b", "c"], ["h", "h"]])
@pytest.mark.parametrize("tasks", [1, 3])
def test_the_place_is_one_that_the_topology_reads(hosts: list[str], tasks: int) -> None:
    places = [derive(environ, "h", lambda path: "") for environ in environments(hosts, tasks)]
    assert [(place.rank, place.node_rank, place.local_rank) for place in places] == [
        (node * tasks + task, node, task) for node in range(len(hosts)) for task in range(tasks)
    ]
    assert {(place.source, place.world_size, place.hosts, place.master) for place in places} == {
        ("launcher", len(hosts) * tasks, tuple(hosts), hosts[0])
    }


def spawn(nodes: int, script: str, *, grace: float = 5, **environ: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "launcher.schedulers.tasks",
        str(nodes),
        "1",
        str(grace),
        "/bin/bash",
        "-c",
        script,
    ]
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit $((LAUNCHER_TASK * 75))", 75),
        ("[ $LAUNCHER_TASK = 1 ] && exit 93; exec sleep 60", 93),
        ("[ $LAUNCHER_TASK = 0 ] && kill -KILL $$; exec sleep 60", 128 + 9),
    ],
)
def test_the_first_failure_ends_all_and_is_the_exit_code(script: str, code: int) -> None:
    start = time.monotonic()
    assert spawn(2, script).wait(30) == code
    assert time.monotonic() - start < 20


def test_a_task_that_does_not_listen_is_killed_when_its_grace_is_over() -> None:
    stubborn = "[ $LAUNCHER_TASK = 1 ] && exit 3; trap '' TERM; while :; do sleep 0.05; done"
    assert spawn(2, stubborn, grace=0.2).wait(30) == 3


def test_a_signal_is_handed_on(tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/told-$LAUNCHER_TASK; exit 75' TERM; echo; while :; do sleep 0.02; done"
    process = spawn(2, script)
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["told-0", "told-1"]


def test_tasks_know_their_job() -> None:
    process = spawn(1, "echo $LAUNCHER_JOB $MINE", LAUNCHER_JOB_ID="local-1", MINE="x")
    assert process.communicate(timeout=30)[0] == "local-1 x\n"


def test_the_others_go_on_when_the_run_may_lose_nodes(tmp_path: Path) -> None:
    script = f"[ $LAUNCHER_TASK = 1 ] && exit 93; sleep 0.5; touch {tmp_path}/done"
    command = [sys.executable, "-m", "launcher.schedulers.tasks", "--go-on", "2", "1", "5", "/bin/bash", "-c", script]
    assert subprocess.run(command, check=False, timeout=30).returncode == 93
    assert (tmp_path / "done").exists()


def test_a_task_that_goes_on_in_another_job_ends_the_others_even_then(tmp_path: Path) -> None:
    ready, told = tmp_path / "ready", tmp_path / "told"
    script = f"""
        [ $LAUNCHER_TASK = 1 ] && {{ until [ -e {ready} ]; do sleep 0.05; done; exit {errors.RESUME}; }}
        trap 'touch {told}; exit 1' TERM; touch {ready}; while :; do sleep 0.05; done"""
    command = [sys.executable, "-m", "launcher.schedulers.tasks", "--go-on", "2", "1", "5", "/bin/bash", "-c", script]
    start = time.monotonic()
    assert subprocess.run(command, check=False, timeout=30).returncode == errors.RESUME
    assert time.monotonic() - start < 20
    assert told.exists()


def test_it_does_so_whichever_task_failed_before(tmp_path: Path) -> None:
    script = f"""
        [ $LAUNCHER_TASK = 0 ] && {{ touch {tmp_path}/failed; exit 93; }}
        [ $LAUNCHER_TASK = 1 ] && {{ until [ -e {tmp_path}/failed ]; do sleep 0.05; done; sleep 0.5; exit 75; }}
        exec sleep 60"""
    command = [sys.executable, "-m", "launcher.schedulers.tasks", "--go-on", "3", "1", "5", "/bin/bash", "-c", script]
    start = time.monotonic()
    assert subprocess.run(command, check=False, timeout=30).returncode == 93
    assert time.monotonic() - start < 20


def test_an_agent_that_is_done_leaves_with_all_that_it_printed_and_does_not_wait_for_pythons_own_end() -> None:
    lines = (
        "import atexit, sys; from launcher.agent.__main__ import leave; atexit.register(print, 'late')",
        "print('early', end=''); print('also', end='', file=sys.stderr); leave(75)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (75, "early", "also")
