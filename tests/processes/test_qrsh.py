"""The tasks of a node that qrsh starts, as processes of this machine."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from launcher import processes
from launcher.schedulers.sge import qrsh
from launcher.schedulers.sge.qrsh import NodeTasks
from launcher.schedulers.tasks import TaskRequest
from tests.launch import until


@pytest.mark.parametrize("readable", [True, False])
def test_a_start_is_only_missed_where_its_file_could_be_read(
    readable: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "0.started"
    tasks = NodeTasks("node2", ["sh", "-c", "exit 3"], b"\n", started)
    if not readable:
        started.unlink()
    until(lambda: tasks.poll() == 3, "the process has ended")
    tasks.kill()
    assert ("qrsh -inherit ended with exit code 3" in capsys.readouterr().err) is readable


@pytest.mark.parametrize(("begun", "code"), [(False, 75), (True, 140)])
def test_a_task_that_is_asked_to_stop_while_its_shell_starts_has_not_failed(
    begun: bool, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "0.started"
    tasks = NodeTasks("node2", ["sh", "-c", f"{f'echo >{started};' if begun else ''} exit 140"], b"\n", started)
    until(lambda: tasks.poll() == code, "the process has ended")
    assert not capsys.readouterr().err


def test_a_qrsh_that_does_not_notice_that_its_node_is_gone_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "0.started"
    tasks = NodeTasks("node2", ["sleep", "600"], b"\n", started)
    started.write_text("started\n")
    tasks.kill()
    assert tasks.poll() is None, "the program on the node ends its tasks, and then itself"
    monkeypatch.setattr(qrsh, "UNREACHABLE", 0.0)
    tasks.kill()
    until(lambda: tasks.poll() == -9, "the end of it")


def test_a_job_has_more_nodes_than_its_soft_limit_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its tasks have the limit of the job."""
    nodes, (soft, hard) = 100, resource.getrlimit(resource.RLIMIT_NOFILE)
    few = sum(1 for _ in Path("/proc/self/fd").iterdir()) + 50
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    (tmp_path / "hosts").write_text("".join(f"node{number} 1 all.q NONE\n" for number in range(nodes)))
    (tmp_path / "qrsh").write_text("#!/bin/sh\nexec cat >/dev/null\n")
    (tmp_path / "qrsh").chmod(0o700)
    monkeypatch.setenv("PE_HOSTFILE", str(tmp_path / "hosts"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "_users", None)
    started: list[NodeTasks] = []

    def watch(tasks: list[NodeTasks], *_: object, **__: object) -> int:
        started.extend(tasks)
        until(lambda: tasks[0].poll() == 0, "the end of the tasks on the first node")
        return 0

    monkeypatch.setattr("launcher.schedulers.tasks.watch", watch)
    mask = os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        command = ["sh", "-c", f"ulimit -n >{tmp_path}/limit"]
        assert qrsh.run(TaskRequest(tmp_path / "tasks", nodes, 1, 1.0, command, [])) == 0
    finally:
        for each in started:
            each._process.kill()
            each._process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.umask(mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert len(started) == nodes
    assert (tmp_path / "limit").read_text() == f"{few}\n"
