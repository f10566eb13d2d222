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
from launcher.runs.events import Submitted, every
from launcher.runs.history import journal_events, process_of
from tests import warm_python
from tests.contract.schedulers import detached, local, on
from tests.launch import ROOT, Launcher, Result, command_lines
from tests.markers import slow
from tests.terminal import Terminal

PLACES = ("rank", "local_rank", "world_size", "local_world_size", "node_rank", "nnodes")


IN_ORDER = [dict(zip(PLACES, values, strict=True)) for values in (
    (0, 0, 4, 2, 0, 2), (1, 1, 4, 2, 0, 2), (2, 0, 4, 2, 1, 2), (3, 1, 4, 2, 1, 2),
)]  # fmt: skip


@on("local", "slurm", "pbs", "sge", ci=("third",))
def test_a_run_is_what_a_dry_run_showed_and_has_its_environment_and_private_files(launcher: Launcher) -> None:
    value = """a "b" 'c' $(id) `id` \\ ; | & é"""
    settings = {"cluster": {"setup": ["export FROM_SETUP=yes"], "environment": {"FROM_PROFILE": value}}}
    launcher.config_dir.mkdir(exist_ok=True)
    (launcher.config_dir / "user.yaml").write_text(json.dumps(settings))  # JSON is YAML
    words = [
        "workload=collective", "workload.entry=tests.chaos.faults:tells", "nodes=2", "procs_per_node=2", "run_id=one",
        *launcher.overrides,
    ]  # fmt: skip
    previous = os.umask(0o027)
    try:
        shown = launcher(*words, "dry_run=true")
        assert shown.returncode == 0, shown.stderr
        assert not launcher.runs_dir.exists()
        done = launcher(*words, "wait=true", FROM_SHELL="inherited")
    finally:
        os.umask(previous)
    assert done.returncode == 0, done.stdout + done.stderr
    run = launcher.last()
    assert (run.path / "script.sh").read_text() == shown.stdout[shown.stdout.index("#!/bin/bash") :]
    metrics = run.result() or {}
    assert metrics["places"] == IN_ORDER, "ranks fill the nodes in order"
    assert metrics["environments"] == [["yes", value, "inherited"]] * 4
    assert metrics["umasks"] == ["027"] * 4, "files of ranks are the user's own business"
    for path in [run.path, *run.path.rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path

    assert f"{run.id} is done" in done.stdout + done.stderr
    assert launcher.status()["state"] == "done"
    assert launcher("wait", "latest", "-q").returncode == 0

    again = launcher(*words, "wait=true")
    assert again.returncode == 0, again.stderr
    assert len(run.attempts()) == 1, "a run_id is submitted once"
    assert "submitted before" in again.stdout + again.stderr
    other = launcher(*words, "seed=3", "wait=true")
    assert other.returncode == 2
    assert "seed" in other.stderr
    assert "choose another run_id" in other.stderr


@detached("slurm", ci=("pbs", "sge"), never=("local", "allocation"))
def test_a_run_that_the_user_submits_with_the_printed_command_is_a_run_like_any_other(launcher: Launcher) -> None:
    words = (
        "workload=collective", "workload.entry=tests.chaos.faults:tells", "nodes=2", "procs_per_node=2", "run_id=hand",
    )  # fmt: skip
    shell = {"FROM_SHELL": "inherited", "OMPI_COMM_WORLD_RANK": "7"}
    printed = launcher.submit(*words, "submit=false", **shell)
    assert printed.returncode == 0, printed.stderr
    assert launcher.status()["state"] == "unsubmitted"
    assert "it is yours to submit (submit=false)" in launcher("why", "hand").stdout
    assert launcher.submit(*words, "submit=false", **shell).stdout == printed.stdout, "the same job again"
    refused = launcher.submit(*words, "submit=false", "wait=true")
    assert refused.returncode == 2
    assert "there is no job to wait for yet" in refused.stderr

    launcher.by_hand(printed.stdout, **shell)
    row = launcher.status()
    assert row["job"], row
    again = launcher.submit(*words)
    assert f"job        {row['job']} on " in again.stdout, again.stdout + again.stderr
    waited = launcher("wait", "hand")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    run = launcher.last()
    assert len(run.attempts()) == 1
    metrics = run.result() or {}
    assert metrics["places"] == IN_ORDER
    assert [each[2] for each in metrics["environments"]] == ["inherited"] * 4


@detached("pbs", never=("local", "allocation"))
def test_what_was_cancelled_before_the_user_submitted_it_runs_nothing(launcher: Launcher) -> None:
    words = ("workload=collective", "workload.entry=tests.chaos.faults:fine", "run_id=hand", "submit=false")
    printed = launcher.submit(*words)
    assert launcher("cancel", "hand").returncode == 0
    assert launcher.status()["state"] == "cancelled"
    launcher.by_hand(printed.stdout)
    run = launcher.last()
    launcher.until(
        lambda: any(event["event"] == "ended" for each in run.attempts() for event in each.events()), "no end"
    )
    launcher.until(lambda: launcher.status()["state"] == "cancelled", "it is not cancelled")
    assert run.result() is None


@detached("slurm", never=("local", "allocation"))
def test_the_jobs_of_a_chain_are_submitted_with_one_printed_command(launcher: Launcher) -> None:
    printed = launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.faults:fine", "run_id=hand", "resume.how=chain",
        "resume.max_attempts=3", "submit=false",
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    launcher.by_hand(printed.stdout)
    assert launcher.status()["job"]
    (submitted,) = every(journal_events(launcher.last()), Submitted)
    assert len({submitted.job, *submitted.chain}) == 3
    assert launcher("wait", "hand").returncode == 0
    assert len(launcher.last().attempts()) == 1


@on("slurm", "pbs", "sge")
def test_ranks_fill_the_nodes_in_order_if_the_scheduler_starts_them(launcher: Launcher) -> None:
    result = launcher.fault("tells", "launch=tasks")
    assert result.code == 0, result.output
    assert result.metrics["places"] == IN_ORDER


@on("slurm")
def test_a_failing_rank_ends_the_run_and_is_named(launcher: Launcher) -> None:
    shown = blamed(launcher, "raises", "ValueError: the loss is a banana").output
    shown = shown[shown.index("Traceback of rank 3:") :]
    assert "tests/chaos/faults.py" in shown, "the user's own frames"
    assert "torch/distributed/elastic" not in shown
    assert not re.search("launcher/(agent|worker)", shown)


@local
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("leaves", "exited with code 0 before its work was done"),
        slow("is_killed", "killed by SIGKILL"),
        slow("exits", "exited with code 7"),
        ("calls_sys_exit", "no such file: weights.pt"),
        slow("segfaults", "killed by SIGSEGV"),
    ],
)
def test_kinds_of_failures_are_distinguished(launcher: Launcher, kind: str, cause: str) -> None:
    blamed(launcher, kind, cause)


def blamed(launcher: Launcher, kind: str, cause: str) -> Result:
    """Makes rank 3 fail in this way, and checks that all commands report it."""
    result = launcher.fault(kind)
    assert result.code == 1, result.output
    assert f"rank 3 on {result.fault['host']}" in result.cause
    assert cause in result.cause
    assert cause in result.output
    assert launcher.status()["state"] == "failed"
    assert launcher("wait", "latest", "-q").returncode == 1
    return result


@on("local", ci=("slurm",))
def test_a_rank_that_never_joins_is_named(launcher: Launcher) -> None:
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.hangs:main", "nodes=2", "procs_per_node=2",
        "launch.rendezvous_timeout=5",
    )  # fmt: skip
    assert result.code == 1, result.output
    assert result.fault["code"] == "not_joined"
    assert [each["rank"] for each in result.fault["accused"]] == [1]  # type: ignore[attr-defined]


@on("slurm")
def test_an_agent_that_is_killed_is_named(launcher: Launcher) -> None:
    """The other agents lose its connection, as when a node is lost, and the scheduler asks them to stop."""
    result = launcher.fault("kills_its_agent", "procs_per_node=1")
    assert result.code != 0
    host = launcher.hosts[1]
    assert (result.fault["code"], result.fault["accused"]) == ("node_ended", [{"host": host}]), result.output


@on("third")
def test_exit_code_75_means_stopped_and_not_failed(launcher: Launcher) -> None:
    result = launcher.fault("stops_for_resume", "resume.how=never")
    assert result.code == 75, result.output
    assert launcher.status()["state"] == "stopped"


@detached("local", "slurm", "pbs", "sge", ci=("third",))
def test_a_cancelled_run_leaves_no_process(launcher: Launcher) -> None:
    launcher.submit("workload=collective", "workload.entry=tests.chaos.faults:sleeps", "procs_per_node=2", "wait=false")
    launcher.until(lambda: launcher.printed().count("asleep") == 2, "both ranks are asleep")
    assert launcher("cancel", "latest").returncode == 0
    assert launcher("wait", "latest", "-q").returncode == 1
    assert launcher.status()["state"] == "cancelled"
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 15)


@on("local", "slurm", "sge")
def test_a_failing_set_up_line_ends_the_run_before_any_rank(launcher: Launcher) -> None:
    result = launcher.fault("fine", "cluster.setup=['cd /','ls /no/such/folder']")
    assert result.code == 93
    assert "set-up line 2" in result.output
    assert "ls /no/such/folder" in result.output
    assert launcher.status()["state"] == "failed"
    assert not list((result.run.attempts()[-1].path).glob("logs"))


@local  # it is refused before any scheduler is asked
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
        (["submit=false"], ["cluster=local has no queue"]),
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


@local
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


@on("slurm")
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
    return [line for line in command_lines() if str(launcher.runs_dir) in line]


@local
@pytest.mark.parametrize(
    "way", ["the window is closed", pytest.param("nobody reads it any more", marks=pytest.mark.ci)]
)
def test_a_run_of_this_machine_ends_with_its_terminal(launcher: Launcher, way: str, tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("import time\nwhile True:\n    print('at work', flush=True)\n    time.sleep(0.1)\n")
    command = [
        warm_python.python(), "-m", "launcher", "workload=program", f"workload.script={script}", "run_id=a",
        "launch.grace=5", *launcher.overrides,
    ]  # fmt: skip
    if way == "the window is closed":
        terminal = Terminal(command, launcher.environ, ROOT)
        terminal.expect("launcher: a starts: torch takes some seconds to load")
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
