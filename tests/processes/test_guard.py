"""What a task leaves behind is killed with it, and nothing else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import processes
from launcher.paths import PACKAGE

# A task that is guarded and leaves behind: a process of its own session, and one whose parents have ended.
TASK = """
import signal, subprocess, sys
from launcher import processes

processes.GUARD_PAUSE = 0.01
processes.start_guard()
subprocess.run(["sh", "-c", "sleep 60 </dev/null >/dev/null 2>&1 & echo $!"], start_new_session=True)
print(subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)
signal.pause()
"""


@pytest.fixture
def mark() -> str:
    """A mark that no other process of this host has."""
    return f"test-{uuid.uuid4()}"


Sleep = Callable[..., int]


@pytest.fixture
def sleep() -> Iterator[Sleep]:
    """Starts a process that sleeps, with these variables and no others; returns its id."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**environ: str) -> int:
        started.append(subprocess.Popen(["/bin/sleep", "60"], env=environ))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether the process ends within seconds."""
    until = time.monotonic() + 5
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.005)
    return not alive(pid)


def run_and_kill(environ: dict[str, str]) -> list[int]:
    """Kills a task, with its process group, and waits until it and its guard have ended; what it left behind."""
    reader, writer = os.pipe()  # held by the task and its guard only: what they start does not inherit it
    task = subprocess.Popen(
        [sys.executable, "-c", TASK], env={**os.environ, **environ}, cwd=PACKAGE.parent, stdout=subprocess.PIPE,
        pass_fds=[writer], start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    assert task.stdout is not None
    left = [int(task.stdout.readline()) for _ in range(2)]
    try:
        assert all(map(alive, left))
        os.killpg(task.pid, signal.SIGTERM)  # the guard heeds it as little as the SIGKILL that it does not get
        os.killpg(task.pid, signal.SIGKILL)
        task.wait()
        assert select.select([reader], [], [], 5)[0] == [reader], "the guard is still there"
    finally:
        os.close(reader)
        task.kill()
        task.stdout.close()
    return left


def test_what_a_killed_task_leaves_behind_is_killed(mark: str, sleep: Sleep) -> None:
    others = [sleep(LAUNCHER_GUARD=f"{mark}-other"), sleep(PATH="/bin"), sleep(OTHER=f"LAUNCHER_GUARD={mark}")]
    left = run_and_kill({"LAUNCHER_GUARD": mark})
    assert all(map(gone, left))
    assert all(map(alive, others))


@pytest.mark.parametrize("environ", [{}, {"LAUNCHER_GUARD": ""}])
def test_without_a_mark_nothing_is_guarded(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    monkeypatch.delenv("LAUNCHER_GUARD", raising=False)
    left = run_and_kill(environ)
    try:
        assert all(map(alive, left))
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_process_without_a_mark_gets_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAUNCHER_GUARD", raising=False)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forks"))
    processes.start_guard()
    monkeypatch.setenv("LAUNCHER_GUARD", "")
    processes.start_guard()


def test_only_those_with_the_mark_are_killed(mark: str, sleep: Sleep) -> None:
    marked = [sleep(LAUNCHER_GUARD=mark), sleep(A="1", LAUNCHER_GUARD=mark, Z="1")]
    spared = [
        sleep(),
        sleep(LAUNCHER_GUARD=""),
        sleep(LAUNCHER_GUARD=mark[:-1]),
        sleep(LAUNCHER_GUARD=f"{mark}1"),
        sleep(LAUNCHER_GUARD=f"x{mark}"),
        sleep(MY_LAUNCHER_GUARD=mark),
        sleep(A=f"\nLAUNCHER_GUARD={mark}"),
    ]
    assert processes.kill_marked(mark)
    assert all(map(gone, marked))
    assert all(map(alive, spared))


def test_it_is_told_when_nobody_is_left(mark: str, sleep: Sleep) -> None:
    assert not processes.kill_marked(mark)
    pid = sleep(LAUNCHER_GUARD=mark)
    assert processes.kill_marked(mark)
    os.waitpid(pid, 0)
    assert not processes.kill_marked(mark)


def test_a_mark_may_be_any_text(sleep: Sleep) -> None:
    mark = f"136[5].pbs-srv größe\n{uuid.uuid4()}"
    pid = sleep(LAUNCHER_GUARD=mark)
    assert processes.kill_marked(mark)
    assert gone(pid)
