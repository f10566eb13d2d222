"""What every scheduler must do with a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from launcher.runs.directory import Run
from launcher.runs.journal import process_of
from tests.launch import PYTHON, ROOT, Launcher
from tests.terminal import Terminal

PLACES = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "nnodes")


@pytest.mark.parametrize("mode", ["agent", "tasks"])
def test_ranks_fill_the_nodes_in_order_however_they_are_started(launcher: Launcher, mode: str) -> None:
    result = launcher.fault("tells_places", f"launch={mode}")
    assert result.code == 0, result.output
    places = result.metrics["places"]
    assert places == [dict(zip(PLACES, values, strict=True)) for values in (
        (0, 0, 4, 2, 0, 2), (1, 1, 4, 2, 0, 2), (2, 0, 4, 2, 1, 2), (3, 1, 4, 2, 1, 2),
    )]  # fmt: skip


def test_all_commands_agree_that_a_run_is_done(launcher: Launcher) -> None:
    result = launcher.fault("fine")
    assert result.code == 0, result.output
    assert launcher.status()["state"] == "done"
    assert launcher("wait", "latest", "-q").returncode == 0
    assert result.metrics["world_size"] == 4
    assert f"{result.run.id} is done" in result.output


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("raises", "ValueError: the loss is a banana"),
        ("leaves", "exited with code 0 before its work was done"),
        ("is_killed", "killed by SIGKILL"),
    ],
)
def test_a_failing_rank_ends_the_run_and_is_named(launcher: Launcher, kind: str, cause: str) -> None:
    blamed(launcher, kind, cause)


@pytest.mark.parametrize("launcher", ["local"], indirect=True)  # how a rank ends is nothing of a backend's
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("exits", "exited with code 7"),
        ("calls_sys_exit", "no such file: weights.pt"),
        ("segfaults", "killed by SIGSEGV"),
    ],
)
def test_kinds_of_failures_are_distinguished(launcher: Launcher, kind: str, cause: str) -> None:
    blamed(launcher, kind, cause)


def blamed(launcher: Launcher, kind: str, cause: str) -> None:
    """Makes rank 3 fail in this way, and checks that all commands report it."""
    result = launcher.fault(kind)
    assert result.code == 1, result.output
    assert f"rank 3 on {result.fault['host']}" in result.cause
    assert cause in result.cause
    assert cause in result.output
    assert launcher.status()["state"] == "failed"
    assert launcher("wait", "latest", "-q").returncode == 1


def test_the_users_own_frames_are_the_traceback_that_is_shown(launcher: Launcher) -> None:
    result = launcher.fault("raises", FAULT_RANK="0")
    shown = result.output[result.output.index("Traceback of rank 0:") :]
    assert "tests/chaos/faults.py" in shown
    assert "torch/distributed/elastic" not in shown
    assert not re.search("launcher/(agent|worker)", shown)


def test_a_rank_that_never_joins_is_named(launcher: Launcher) -> None:
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.hangs:main", "nodes=2", "procs_per_node=2",
        "launch.rendezvous_timeout=5",
    )  # fmt: skip
    assert result.code == 1, result.output
    assert result.fault["code"] == "not_joined"
    assert [each["rank"] for each in result.fault["accused"]] == [1]  # type: ignore[attr-defined]


def test_an_agent_that_is_killed_is_named(launcher: Launcher) -> None:
    """The other agents lose its connection, as when a node is lost, and the scheduler asks them to stop."""
    result = launcher.fault("kills_its_agent", "procs_per_node=1")
    assert result.code != 0
    host = launcher.hosts[1]
    assert (result.fault["code"], result.fault["accused"]) == ("node_ended", [{"host": host}]), result.output


def test_exit_code_75_means_stopped_and_not_failed(launcher: Launcher) -> None:
    result = launcher.fault("stops_for_resume", "resume.how=never")
    assert result.code == 75, result.output
    assert launcher.status()["state"] == "stopped"


def test_a_cancelled_run_leaves_no_process(launcher: Launcher) -> None:
    if launcher.prefix:  # inside an allocation the run lives in the foreground of its shell
        pytest.skip("a run in a held allocation is ended by Ctrl-C, which test_allocation.py tests")
    launcher.submit("workload=collective", "workload.entry=tests.chaos.faults:sleeps", "procs_per_node=2", "wait=false")
    launcher.until(lambda: launcher.printed().count("asleep") == 2, "both ranks are asleep")
    assert launcher("cancel", "latest").returncode == 0
    assert launcher("wait", "latest", "-q").returncode == 1
    assert launcher.status()["state"] == "cancelled"
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 15)


def test_files_of_a_run_are_private(launcher: Launcher) -> None:
    run = launcher.fault("fine").run
    for path in [run.path, *run.path.rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_the_users_umask_reaches_the_ranks(launcher: Launcher) -> None:
    previous = os.umask(0o027)
    try:
        assert launcher.fault("fine").metrics["umask"] == "027"
    finally:
        os.umask(previous)


def test_a_failing_set_up_line_ends_the_run_before_any_rank(launcher: Launcher) -> None:
    result = launcher.fault("fine", "cluster.setup=['cd /','ls /no/such/folder']")
    assert result.code == 93
    assert "set-up line 2" in result.output
    assert "ls /no/such/folder" in result.output
    assert launcher.status()["state"] == "failed"
    assert not list((result.run.attempts()[-1].path).glob("logs"))


def test_set_up_lines_and_the_environment_reach_every_rank(launcher: Launcher) -> None:
    value = """a "b" 'c' $(id) `id` \\ ; | & é"""
    settings = {"cluster": {"setup": ["export FROM_SETUP=yes"], "environment": {"FROM_PROFILE": value}}}
    launcher.config_dir.mkdir(exist_ok=True)
    (launcher.config_dir / "user.yaml").write_text(json.dumps(settings))  # JSON is YAML
    result = launcher.fault("tells_environment", FROM_SHELL="inherited")
    assert result.code == 0, result.output
    assert result.metrics["environments"] == [["yes", value, "inherited"]] * 4


def test_a_script_shown_by_dry_run_is_the_one_that_runs(launcher: Launcher) -> None:
    words = ["workload=collective", "workload.entry=tests.chaos.faults:fine", "run_id=same-1", *launcher.overrides]
    shown = launcher(*words, "dry_run=true")
    assert shown.returncode == 0, shown.stderr
    assert not launcher.runs_dir.exists()
    assert launcher(*words, "wait=true").returncode == 0
    assert (launcher.runs_dir / "same-1/script.sh").read_text() == shown.stdout[shown.stdout.index("#!/bin/bash") :]


def test_a_run_id_is_submitted_once(launcher: Launcher) -> None:
    words = ["workload=collective", "workload.entry=tests.chaos.faults:fine", "run_id=once-1", *launcher.overrides]
    assert launcher(*words, "wait=true").returncode == 0
    again = launcher(*words, "wait=true")
    assert again.returncode == 0, again.stderr
    assert len(list((launcher.runs_dir / "once-1/attempts").iterdir())) == 1
    other = launcher(*words, "seed=3", "wait=true")
    assert other.returncode == 2
    assert "seed" in other.stderr
    assert "choose another run_id" in other.stderr


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["nodes=0"], ["nodes=0", "1 or more"]),
        (["nodes=two"], ["nodes=two", "whole number"]),
        (["time=25:99"], ["25:99", "01:30:00"]),
        (["min_nodes=3"], ["min_nodes=3 is more than nodes="]),
        (["name='a b'"], ["name='a b'", "letters, digits"]),
        (["name='$(touch oops)'"], ["letters, digits"]),
        (["nod=2"], ["'nod'", "Did you mean nodes"]),
        (["+nod=2"], ["'nod'", "Did you mean nodes"]),
        (["workload=colective"], ["Did you mean collective"]),
        (["workload.op=all_reduc"], ["Did you mean all_reduce"]),
        (["cluster.port_range=5"], ["cluster.port_range", "LOW-HIGH"]),
        (["cluster.environment={1A: b}"], ["1A"]),
        (["cluster.setup=['a\x07b']"], ["control character"]),
    ],
)
def test_bad_input_is_refused_and_leaves_no_files(launcher: Launcher, overrides: list[str], words: list[str]) -> None:
    start = time.monotonic()
    done = launcher.submit("workload=collective", *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not launcher.runs_dir.exists()
    assert time.monotonic() - start < 60


def test_a_damaged_data_file_is_reported_before_submission(launcher: Launcher, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "workloads/digits", tmp_path / "data/digits")
    damaged = sorted((tmp_path / "data/digits").glob("*.gz"))[0]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    done = launcher.submit("workload=ddp_mnist", "workload.dataset=digits", f"workload.data_dir={tmp_path}/data")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{damaged} is damaged" in done.stderr
    assert not launcher.runs_dir.exists()


def test_a_run_directory_that_others_can_write_to_is_not_used(launcher: Launcher) -> None:
    """A pickle is loaded from there: neither the node nor a later submission may use it."""
    result = launcher.fault("fine", "run_id=open", "cluster.setup=['chmod 777 \"$LAUNCHER_RUN_DIR\"']")
    assert result.code in (1, 93)  # 93 from the node that saw it first; Slurm may have killed another one before
    assert f"others can write to {result.run.path}" in result.output
    assert not list(result.run.attempts()[-1].path.glob("logs"))
    again = launcher.fault("fine", "run_id=open", "cluster.setup=['chmod 777 \"$LAUNCHER_RUN_DIR\"']")
    assert again.code == 1
    assert "others can write to" in again.output


def processes_of(launcher: Launcher) -> list[str]:
    """Returns the command lines of live processes that contain the folder of this launcher's runs."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(launcher.runs_dir) in line:
                found.append(line)
    return found


@pytest.mark.parametrize("launcher", ["local"], indirect=True)
@pytest.mark.parametrize("way", ["the window is closed", "nobody reads it any more"])
def test_a_run_of_this_machine_ends_with_its_terminal(launcher: Launcher, way: str, tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("import time\nwhile True:\n    print('at work', flush=True)\n    time.sleep(0.1)\n")
    command = [
        PYTHON, "-m", "launcher", "workload=program", f"workload.script={script}", "run_id=a", "launch.grace=5",
        *launcher.overrides,
    ]  # fmt: skip
    if way == "the window is closed":
        terminal = Terminal(command, launcher.environ, ROOT)
        terminal.expect("at work")
        terminal.hang_up()
    else:
        with subprocess.Popen(command, cwd=ROOT, env=launcher.environ, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 130
    leader = process_of(Run(launcher.runs_dir / "a"))
    assert leader is not None
    launcher.until(lambda: not leader.alive(), "it has ended")
    assert launcher.status()["state"] == "cancelled"
