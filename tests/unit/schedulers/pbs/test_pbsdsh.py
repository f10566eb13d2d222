"""What a task that pbsdsh starts is given: its host's line, and the environment as shell text."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.diagnose.verdict import Evidence, classify
from launcher.errors import ConfigError
from launcher.failures.codes import EndKind, FaultCode
from launcher.files.retried_reads import IN_A_JOB
from launcher.monitoring.run_status import JobStatus, RunState
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Fault
from launcher.runs.history import first_fault
from launcher.schedulers import registry, tasks
from launcher.schedulers.base import Allocation
from launcher.schedulers.pbs import client, task_starters
from launcher.schedulers.pbs import task_starters as pbs_task
from launcher.schedulers.pbs.task_starters import SETTLE_TIME, PbsTask, TaskEnvironment, exports
from launcher.schedulers.tasks import TaskRequest
from launcher.schedulers.topology import hosts_in_node_file
from tests.unit.faults import FileServer


@pytest.mark.parametrize(
    ("node_file", "hosts"),
    [
        ("a\nb\n", {"a": 0, "b": 1}),
        ("a\na\nb\nb\n", {"a": 0, "b": 2}),
        ("a\nb\na\nb\n", {"a": 0, "b": 1}),
        ("\na.site\n", {"a.site": 1}),
        ("", {}),
    ],
)
def test_each_host_once_with_its_first_line(node_file: str, hosts: dict[str, int]) -> None:
    assert hosts_in_node_file(node_file) == hosts
    assert list(hosts_in_node_file(node_file)) == list(hosts)


def after(folder: Path, environ: dict[str, str], **own: str) -> dict[str, str]:
    """What a task sees that had `own` before it read the exports of `environ`."""
    (folder / "e").write_bytes(os.fsencode(exports(environ)))
    done = subprocess.run(
        ["/bin/bash", "-c", '. "$0"; env -0', str(folder / "e")], env={"PATH": "/bin:/usr/bin", **own},
        capture_output=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    return dict(pair.split("=", 1) for pair in os.fsdecode(done.stdout).split("\0")[:-1])


@settings(max_examples=30)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_value_arrives_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    assert after(tmp_path_factory.mktemp("e"), {"A": value})["A"] == value


def test_bytes_that_are_no_text_arrive(tmp_path: Path) -> None:
    assert after(tmp_path, {"A": os.fsdecode(b"\xff\n'")})["A"] == os.fsdecode(b"\xff\n'")


def test_path_and_home_are_the_shells(tmp_path: Path) -> None:
    seen = after(tmp_path, {"PATH": "/mine:/bin:/usr/bin", "HOME": "/mine"}, HOME="/root")
    assert (seen["PATH"], seen["HOME"]) == ("/mine:/bin:/usr/bin", "/mine")


def test_what_is_the_nodes_own_stays(tmp_path: Path) -> None:
    shell = {"PBS_NODENUM": "0", "CUDA_VISIBLE_DEVICES": "GPU-1", "ROCR_VISIBLE_DEVICES": "1"}
    seen = after(tmp_path, shell, PBS_NODENUM="1", CUDA_VISIBLE_DEVICES="GPU-9")
    assert [seen[name] for name in shell] == ["1", "GPU-9", "1"]


def test_exported_functions_do_not_arrive() -> None:
    assert exports({"BASH_FUNC_cd%%": "() { touch pwned; }", "A": "b"}) == "export A=b\n"


SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3"}


@pytest.mark.parametrize(
    ("environ", "found", "nodes"),
    [
        ({}, None, 1),
        (SLURM, Allocation(3, "srun", job="1"), 3),
        ({"SLURM_JOB_ID": "1"}, Allocation(1, "srun", job="1"), 1),
        ({"PBS_JOBID": "1.s", "PBS_NODEFILE": "{file}"}, Allocation(2, "pbsdsh", job="1.s"), 2),
        ({**SLURM, "PBS_JOBID": "1.s", "PBS_NODEFILE": "{file}"}, Allocation(3, "srun", job="1"), 3),
        ({"PBS_JOBID": "1.s"}, None, 1),
        ({"PBS_NODEFILE": "{file}"}, None, 1),
        ({"JOB_ID": "7", "PE_HOSTFILE": "{file}"}, Allocation(2, "qrsh", job="7"), 2),
        ({"JOB_ID": "7"}, None, 1),
        ({"PE_HOSTFILE": "{file}"}, None, 1),
    ],
)
def test_who_holds_the_allocation(
    tmp_path: Path, environ: dict[str, str], found: Allocation | None, nodes: int
) -> None:
    (tmp_path / "nodes").write_text("a\na\nb\n")
    environ = {name: value.format(file=tmp_path / "nodes") for name, value in environ.items()}
    assert (registry.allocation(environ), registry.nodes(environ)) == (found, nodes)


def test_a_node_file_that_is_not_there_is_told_and_no_default(tmp_path: Path) -> None:
    environ = {"PBS_JOBID": "1.s", "PBS_NODEFILE": str(tmp_path / "none")}
    assert registry.nodes(environ) == 1
    with pytest.raises(ConfigError, match="start the launcher on the job's first node"):
        registry.allocation(environ)


@pytest.mark.parametrize("on_path", [True, False])
def test_pbsdsh_is_found_where_pbs_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/pbsdsh"
    command.touch(0o755)
    (tmp_path / "pbs.conf").write_text(f"PBS_SERVER=s\nPBS_EXEC={tmp_path}\n")
    monkeypatch.setenv("PATH", str(command.parent) if on_path else "/bin")
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / ("none" if on_path else "pbs.conf")))
    assert client.find("pbsdsh") == str(command)


def task_of(tmp_path: Path, pbsdsh: str, command: str) -> PbsTask:
    """A task that runs a line of shell, by a pbsdsh that does as its own lines say."""
    program = tmp_path / "pbsdsh"
    program.write_text(f"#!/bin/bash\nshift 3\n{pbsdsh}\n")
    program.chmod(0o755)
    environment = TaskEnvironment("", tmp_path / "environment.sh", None)
    pbs_task.write_script(tmp_path, environment, str(tmp_path), ["/bin/bash", "-c", command])
    return PbsTask(str(program), 0, "here", tmp_path, 0, 0)


def ended(task: PbsTask) -> int:
    while (code := task.poll()) is None:
        time.sleep(0.01)
    return code


DEAF = 'setsid "$@"\nexec sleep 1000'  # it does not hear that its task has ended
SAVES = "trap 'exit 75' TERM; touch begun; sleep 1000 & wait; wait"


@pytest.mark.parametrize(("how", "code"), [(PbsTask.terminate, 75), (PbsTask.kill, 137)])
def test_a_task_of_a_job_that_is_deleted_is_signalled_and_over_when_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[PbsTask], None], code: int
) -> None:
    """PBS kills a deleted job soon; until then it starts no other pbsdsh, and tells none that its task has ended."""
    monkeypatch.setattr(pbs_task, "LOOK", 0.05)
    monkeypatch.setattr(pbs_task, "SETTLE_TIME", float("inf"))
    monkeypatch.setattr(pbs_task, "UNREACHABLE", float("inf"))
    task = task_of(tmp_path, DEAF, SAVES)
    task.start()
    try:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        assert task.poll() is None
        how(task)
        assert ended(task) == code
    finally:
        task.kill()
        task.poll()


# OpenPBS 23.06.06, when the MoM of the first node is restarted and keeps its jobs (pbs_mom -p), or has crashed.
FAILS = (
    'setsid "$@" &\nuntil [ -e begun ]; do sleep 0.01; done\n'
    "echo '/opt/pbs/bin/pbsdsh: Event poll failed, error not connected (17002)' >&2\nexit 2"
)


@pytest.mark.parametrize(("how", "code"), [(None, 7), (PbsTask.terminate, 75), (PbsTask.kill, 137)])
def test_a_task_goes_on_without_its_pbsdsh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[PbsTask], None] | None, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pbs_task, "SETTLE_TIME", 0.0)
    task = task_of(
        tmp_path, FAILS, f"{SAVES}; exit 7" if how else "touch begun; until [ -e go ]; do sleep 0.01; done; exit 7"
    )
    task.start()
    assert task._process is not None
    assert task._process.wait() == 2
    assert [task.poll() for _ in range(3)] == [None] * 3
    (tmp_path / "go").touch()
    if how is not None:
        how(task)
    assert ended(task) == code


@pytest.mark.parametrize("over", [False, True])
def test_a_task_on_a_lost_node_is_a_failure_unless_its_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    attempt = Attempt(Run(tmp_path / "run"), 0)
    (attempt.path / "events").mkdir(parents=True)
    for module in (pbs_task, tasks):
        monkeypatch.setattr(module, "current_attempt", lambda: attempt)
    monkeypatch.setattr(pbs_task, "UNREACHABLE", 0.0)
    task = task_of(tmp_path, "exec sleep 1000", SAVES)
    task.start()
    (tmp_path / "0.pid").write_text("7\n")
    if over:
        attempt.write_exit_code(0)
    task.kill()
    assert ended(task) == -9
    fault = first_fault(attempt.events())
    assert (fault and fault.code) == (None if over else FaultCode.NODE_ENDED)


@pytest.mark.parametrize(("state", "lost"), [("down", [2, 3]), ("free", []), ("down,offline", [2, 3]), ("offline", [])])
def test_tasks_on_hosts_that_pbs_calls_down_are_lost(
    monkeypatch: pytest.MonkeyPatch, state: str, lost: list[int]
) -> None:
    text = f"n1\n     Mom = n1.site\n     state = free\n\nn2\n     Mom = n2.site\n     state = {state}\n"
    monkeypatch.setattr(task_starters.PBS, "run", lambda *_: text)
    assert task_starters._on_lost_nodes(["n1", "n1", "n2.site", "n2.site"]) == lost


def test_a_task_that_pbs_refuses_to_start_is_over_when_the_job_is_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pbs_task, "SETTLE_TIME", float("inf"))
    task = task_of(tmp_path, "echo 'pbsdsh: spawn failed on node 0 err TM_ENOTCONNECTED' >&2", SAVES)
    task.start()
    task.terminate()
    assert ended(task) == -15


def test_a_task_that_begins_after_the_job_was_told_to_end_does_not_start_its_command(tmp_path: Path) -> None:
    task = task_of(tmp_path, 'while [ ! -e go ]; do sleep 0.01; done; "$@"'.replace("go", f"{tmp_path}/go"), SAVES)
    task.start()
    task.terminate()
    (tmp_path / "go").touch()
    ended(task)
    assert not (tmp_path / "begun").exists()


def test_a_signal_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    task = task_of(tmp_path, '"$@"', "touch begun; exit 7")
    (tmp_path / pbs_task.SIGNAL).unlink()
    task.start()
    assert ended(task) == 7


def test_a_task_whose_exit_status_cannot_be_read_is_waited_for_and_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    monkeypatch.delenv("LAUNCHER_RUN_DIR", raising=False)
    clock = [1000.0]
    monkeypatch.setattr(pbs_task.time, "monotonic", lambda: clock[0])
    gone = tmp_path / "pbsdsh"
    gone.write_text("#!/bin/bash\nexit 0\n")
    gone.chmod(0o700)
    task = PbsTask(str(gone), 0, "here", tmp_path, 0, 0)
    task.start()
    assert task._process is not None
    task._process.wait()
    (tmp_path / "0.exit").write_text("0\n")
    server.fail("0.exit")
    for _ in range(3):
        assert task.poll() is None
        clock[0] += SETTLE_TIME + 1
    server.recover()
    assert task.poll() == 0
    task._code = None
    server.fail("0.exit")
    assert task.poll() is None
    clock[0] += 2 * IN_A_JOB
    assert task.poll() == 75


@pytest.mark.parametrize(
    ("pbsdsh", "kind", "code", "signal"),
    [
        ("echo 1 >{0}/0.pid; echo 'pbsdsh: task 0x00000000 exit status 265' >&2", EndKind.KILLED, FaultCode.SIGNALLED,
         "SIGKILL"),
        ("echo 1 >{0}/0.pid", EndKind.KILLED, FaultCode.SIGNALLED, None),
        ("echo 'pbsdsh: error 17002 on spawn' >&2", EndKind.NEVER_STARTED, FaultCode.TASK_NOT_STARTED, None),
    ],
)  # fmt: skip
def test_a_task_that_ended_without_its_exit_status_is_no_error_in_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pbsdsh: str, kind: EndKind, code: FaultCode, signal: str | None
) -> None:
    monkeypatch.setattr(pbs_task, "SETTLE_TIME", 0.0)
    attempt = Attempt(Run(tmp_path / "run"), 0)
    attempt.events_file("pbsdsh").parent.mkdir(parents=True)
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    task = task_of(tmp_path, pbsdsh.format(tmp_path), "exit 0")
    task.start()
    ended(task)
    event = first_fault(attempt.events())
    assert isinstance(event, Fault)
    assert (event.code, event.signal, event.host) == (code, signal, "here")
    assert (event.error or "").startswith("pbsdsh says ")
    assert classify(Evidence(RunState.FAILED, fault=event)).kind is kind
    lost = JobStatus(raw_state="NODE_FAIL")
    assert classify(Evidence(RunState.FAILED, fault=event, job=lost)).kind is EndKind.NODE_LOST
    memory = {"limit": 100, "largest": 99}
    out_of_memory = classify(Evidence(RunState.FAILED, fault=event, memory=memory)).kind is EndKind.OUT_OF_MEMORY
    assert out_of_memory == (signal == "SIGKILL")


def test_mpiexecs_tasks_learn_the_hosts_from_the_only_node_with_the_node_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    monkeypatch.chdir(tmp_path)
    command = ["sh", "-c", f"echo $LAUNCHER_HOSTS >{tmp_path}/out"]
    wanted = TaskRequest(tmp_path / "tasks", 2, 1, 1.0, command, [], mpiexec=["env"])
    assert task_starters.run_mpiexec(wanted) == 0
    assert (tmp_path / "out").read_text() == "n1,n2\n"


@pytest.mark.parametrize(("variables", "code", "where"), [({"LAUNCHER_RUN_DIR": "/runs/a"}, 0, "/"), ({}, 93, None)])
def test_where_the_folder_is_missing_only_an_agent_is_started_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], code: int, where: str | None
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    monkeypatch.delenv("LAUNCHER_RUN_DIR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(work)
    starter = ["sh", "-c", f'rmdir {work}; exec "$@"', "mpiexec"]
    wanted = TaskRequest(tmp_path / "tasks", 1, 1, 1.0, ["sh", "-c", f"pwd >{out}"], [], mpiexec=starter)
    assert task_starters.run_mpiexec(wanted) == code
    assert (out.read_text().strip() if out.exists() else None) == where
