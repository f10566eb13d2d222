"""Runs on a real Slurm: what only a real scheduler can show."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import Limits
from launcher.runs.directory import Run
from launcher.runs.history import journal_events, read_history
from launcher.schedulers.site import Level
from launcher.schedulers.slurm import limits
from launcher.schedulers.slurm.client import Slurm
from tests import warm_python
from tests.launch import PYTHON, ROOT, Launcher
from tests.markers import ci
from tests.unit.plans import make_cluster

SBATCH = shutil.which("sbatch") or "sbatch"
WORKLOADS = {
    "p2p": ["workload=p2p"],
    "collective": ["workload=collective", "workload.groups=[world,node,stride]"],
    "ddp_mnist": ["workload=ddp_mnist", "workload.dataset=digits", "workload.epochs=10"],
}


@pytest.fixture(params=["slurm", ci("slurm_with_accounting")])
def either(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Slurm cluster: the test runs once without accounting, and once with it."""
    cluster = request.getfixturevalue(request.param)
    yield cluster
    cluster.reset()


def launcher_for(cluster: Any, folder: Path) -> Launcher:
    # Not cluster.env(): the interface of gloo is for the launcher to find.
    return Launcher(folder / "runs", {"SLURM_CONF": cluster.env()["SLURM_CONF"]}, ["cluster=slurm"])


@pytest.fixture
def launcher(slurm: Any, tmp_path: Path) -> Iterator[Launcher]:
    """The launcher's command line with the Slurm without accounting, which is idle after the test."""
    yield launcher_for(slurm, tmp_path)
    slurm.reset()


@pytest.mark.parametrize(
    "workload", ["p2p", *(pytest.param(name, marks=pytest.mark.slow) for name in [*WORKLOADS][1:])]
)
def test_two_nodes_with_four_ranks_run_every_workload(either: Any, tmp_path: Path, workload: str) -> None:
    result = launcher_for(either, tmp_path).run(*WORKLOADS[workload], "nodes=2", "procs_per_node=2")
    assert result.code == 0, result.output
    assert "rank 3/4 local 1 on node2" in result.output
    if workload == "ddp_mnist":
        assert float(str(result.metrics["accuracy"])) > 0.95
    else:
        assert int(str(result.metrics["checked"])) > 0


def test_submission_tells_what_to_type_next_and_leaves(launcher: Launcher) -> None:
    done = launcher.submit("workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=2")
    assert done.returncode == 0, done.stderr
    run = launcher.last()
    job_id = next(event["job"] for event in journal_events(run) if event["event"] == "submitted")
    for words in (run.id, str(run.path), f"job        {job_id} on slurm", f"status {run.id}", f"cancel {run.id}"):
        assert words in done.stdout
    assert (launcher.runs_dir / "latest").resolve() == run.path


def test_the_script_holds_every_key_once_and_slurm_understood_it(launcher: Launcher, slurm: Any) -> None:
    launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.faults:sleeps", "nodes=2", "procs_per_node=2",
        "cpus_per_proc=2", "mem=1G", "time=1h30m", "gpus_per_node=2", "name=full+words.1", "workload.device=cpu",
        "+cluster.directives.nice=5", "+cluster.directives.mem-per-cpu=300M", "cluster.constraint=null",
    )  # fmt: skip
    job_id = next(event["job"] for event in journal_events(launcher.last()) if event["event"] == "submitted")
    shown = slurm.run("scontrol", "show", "job", job_id)
    for words in ("JobName=full+words.1", "NumNodes=2", "CPUs/Task=4", "TimeLimit=01:30:00", "MinMemoryCPU=300M",
                  "Comment=launcher-"):  # fmt: skip
        assert words in shown, shown
    assert re.search(r"TresPerNode=gres[:/]gpu:2", shown), shown  # a slash since 24.05
    script = (launcher.last().path / "script.sh").read_text()
    options = [line.split("=")[0] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert len(options) == len(set(options))
    assert "#SBATCH --mem=" not in script


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["nodes=5"], ["nodes=5", "at most 4", "nodes=4"]),
        (["time=3h"], ["02:00:00"]),
        (["time=30m", "cluster.partition=debug"], ["00:10:00", "cluster.partition=gpu"]),
        (["gpus_per_node=3"], ["gpus_per_node=3", "at most 2"]),
        (["mem=60G"], ["mem=60G", "6000M"]),
        (["cpus_per_proc=5"], ["5 CPUs", "at most 4"]),
        (["cluster.partition=gpuu"], ["Did you mean gpu"]),
    ],
)
def test_what_could_never_start_is_refused_with_the_fix(
    launcher: Launcher, slurm: Any, overrides: list[str], words: list[str]
) -> None:
    done = launcher.submit("workload=collective", *overrides)
    assert done.returncode == 2, done.stdout
    for word in words:
        assert word in done.stderr
    assert not launcher.runs_dir.exists()
    assert slurm.run("squeue", "--noheader").strip() == ""


def test_a_refusal_shows_slurms_own_words_and_leaves_nothing(launcher: Launcher) -> None:
    done = launcher.submit("workload=collective", "+cluster.directives.licenses=nosuch")
    assert done.returncode == 1
    assert "sbatch refused the job: sbatch: error: " in done.stderr
    assert "license" in done.stderr
    assert list(launcher.runs_dir.iterdir()) == []


def test_without_sbatch_nothing_is_made(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.submit("workload=collective", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "sbatch is not on this machine's PATH" in done.stderr
    assert not launcher.runs_dir.exists()


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path.parent


def jobs(slurm: Any) -> list[str]:
    return slurm.run("squeue", "--noheader", "--format=%i").split()


FINE = ("workload=collective", "workload.entry=tests.chaos.faults:fine")


def test_an_sbatch_whose_answer_is_lost_is_not_repeated(launcher: Launcher, slurm: Any, tmp_path: Path) -> None:
    """sbatch takes the job and then hangs: the job is found by its token."""
    folder = script(tmp_path / "bin/sbatch", f'echo x >>"$0.calls"; {SBATCH} "$@" >/dev/null; exec sleep 60')
    done = launcher.submit(
        *FINE, "cluster.submit_timeout=3", "+cluster.directives.hold=true", PATH=f"{folder}:{os.environ['PATH']}"
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "sbatch.calls").read_text() == "x\n"
    assert len(jobs(slurm)) == 1
    assert f"job        {jobs(slurm)[0]} on slurm" in done.stdout


def test_an_sbatch_that_failed_before_the_job_was_made_is_repeated(
    launcher: Launcher, slurm: Any, tmp_path: Path
) -> None:
    folder = script(
        tmp_path / "bin/sbatch",
        f'[ -e "$0.calls" ] && exec {SBATCH} "$@"; echo x >"$0.calls"; '
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
    )
    done = launcher.submit(*FINE, "+cluster.directives.hold=true", PATH=f"{folder}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert len(jobs(slurm)) == 1


def test_a_submitter_killed_in_the_middle_leaves_a_job_that_runs_and_is_found(
    launcher: Launcher, slurm: Any, tmp_path: Path
) -> None:
    """SIGKILL right after Slurm took the job; the same run id then finds it, and it needed nobody meanwhile."""
    folder = script(tmp_path / "bin/sbatch", f'{SBATCH} "$@"; kill -9 $PPID')
    words = [*FINE, "run_id=cut-short"]
    assert launcher.submit(*words, PATH=f"{folder}:{os.environ['PATH']}").returncode == -9
    run = Run(launcher.runs_dir / "cut-short")
    launcher.until(lambda: run.result() is not None, "the job of the killed submitter is done")
    done = launcher.submit(*words)
    assert done.returncode == 0, done.stderr
    assert len(run.attempts()) == 1
    assert launcher("wait", "cut-short", "-q").returncode == 0


def test_a_qos_that_lifts_the_partitions_limit_and_the_cluster_of_the_environment_count(
    slurm_with_accounting: Any, tmp_path: Path
) -> None:
    """Slurm itself runs a job of 20 minutes in a partition of 10 minutes, and all commands find it on that cluster."""
    slurm = slurm_with_accounting
    slurm.run("sacctmgr", "--immediate", "add", "qos", "long", "flags=PartitionTimeLimit")
    slurm.run("sacctmgr", "--immediate", "add", "account", "acc")
    slurm.run("sacctmgr", "--immediate", "add", "user", "root", "account=acc", "qos=normal,long")
    try:
        launcher = launcher_for(slurm, tmp_path)
        words = [*FINE, "time=20m"]
        environ = {"SBATCH_PARTITION": "debug", "SLURM_CLUSTERS": "test"}
        refused = launcher.submit(*words, **environ)
        assert "partition debug ends jobs after 00:10:00" in refused.stderr, refused.stdout
        done = launcher.submit(*words, **environ, SBATCH_QOS="long")
        assert done.returncode == 0, done.stderr
        assert launcher("wait", "latest", "-q", **environ).returncode == 0
        assert "SLURM_CLUSTERS" not in done.stdout + done.stderr
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", slurm.env()["SLURM_CONF"])
            for qos, level in (("long", Level.OK), ("normal", Level.WARNING)):
                cluster = make_cluster("slurm", name="site", partition="debug", qos=qos, limits=Limits(time="20m"))
                assert [each.level for each in limits.with_qos(cluster, limits.partitions_of(Slurm(30)))] == [level]
    finally:
        for words in (["user", "root", "account=acc"], ["account", "acc"], ["qos", "long"]):
            slurm.run("sacctmgr", "--immediate", "delete", *words)


def test_variables_of_another_job_are_not_handed_on(launcher: Launcher) -> None:
    foreign = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "9", "SBATCH_PARTITION": "nosuch", "PMI_RANK": "3",
               "RANK": "5", "MASTER_ADDR": "elsewhere"}  # fmt: skip
    result = launcher.fault("tells_places", "cluster.partition=gpu", **foreign)
    assert result.code == 0, result.output
    assert "not handed on to the job: MASTER_ADDR, PMI_RANK, RANK, SBATCH_PARTITION, SLURM_JOB_ID" in result.output


@pytest.mark.slow
def test_a_node_that_never_starts_is_named(launcher: Launcher, tmp_path: Path) -> None:
    python = (
        script(tmp_path / "bin/python", f'[ "$SLURMD_NODENAME" = node2 ] && sleep 60\nexec {PYTHON} "$@"') / "python"
    )
    done = with_python(
        launcher, python, "workload=collective", "nodes=2", "launch.rendezvous_timeout=6", "cluster=slurm", "wait=true"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "node2 (node 1) did not reach node1 (node 0) in time" in done.stdout + done.stderr


@pytest.mark.ci
def test_a_run_goes_on_without_a_node_that_came_too_late(launcher: Launcher, tmp_path: Path) -> None:
    late = f'[ "$SLURMD_NODENAME" = node3 ] && sleep 20\nexec {warm_python.python()} "$@"'
    python = script(tmp_path / "bin/python", late) / "python"
    done = with_python(
        launcher, python, "workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=3", "min_nodes=2",
        "launch.rendezvous_timeout=6", "cluster=slurm", "wait=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (launcher.last().result() or {})["world_size"] == 2
    assert "node3 waited to join, and is not needed any more: it has ended" in launcher.printed()


def with_python(launcher: Launcher, python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the launcher's command line as if this Python executed it, so that the nodes use it as well."""
    code = (
        "import sys; sys.executable = sys.argv.pop(1); from launcher.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [PYTHON, "-c", code, str(python), *words], env=launcher.environ, cwd=ROOT, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_dozen_jobs_at_once_on_one_node_do_not_meet_each_other(launcher: Launcher, slurm: Any) -> None:
    """All on one host, and with few ports to choose from."""
    started = [
        subprocess.Popen(
            [warm_python.python(), "-m", "launcher", "workload=collective",
             "workload.entry=tests.chaos.faults:fine", "nodes=2",
             "cluster.port_range=21000-21036", f"run_id=at-once-{number}",
             "cluster=local", "launch=agent"],
            env=launcher.environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )
        for number in range(12)
    ]  # fmt: skip
    assert [process.wait(timeout=250) for process in started] == [0] * 12


def test_a_lost_node_fails_the_run_and_is_told(launcher: Launcher, slurm: Any) -> None:
    launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.faults:sleeps", "nodes=2",
        "+cluster.directives.no-requeue=true",
    )  # fmt: skip
    launcher.until(lambda: launcher.printed().count("asleep") == 2, "both ranks are asleep")
    try:
        slurm.fail_node("node2", told=True)
        launcher.until(lambda: launcher.status()["state"] not in ("running", "queued"), "the loss is noticed", 90)
        assert launcher.status()["state"] == "failed"
    finally:
        slurm.restore_node("node2")


@pytest.mark.slow
def test_arrays_and_jobs_are_submitit_jobs(launcher: Launcher, slurm: Any, tmp_path: Path) -> None:
    """In a process of its own, as any user of submitit would."""
    done = subprocess.run(
        [warm_python.python(), str(ROOT / "tests/cluster/submitit_user.py"), str(tmp_path / "api")],
        env=launcher.environ, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told == {
        "single": [[0, 2], [1, 2]],
        "array": [[1, 4, 9, 16]],
        "error": "ZeroDivisionError",
        "state after cancel": "CANCELLED",
        "template": True,
    }


def test_a_job_whose_run_directory_is_gone_is_listed_and_can_be_cancelled(
    launcher: Launcher, slurm: Any, tmp_path: Path
) -> None:
    asleep = (
        "workload=collective",
        "workload.entry=tests.chaos.faults:sleeps",
        "wait=false",
    )

    def listed() -> dict[str, str]:
        rows = json.loads(launcher("status", "--json").stdout)
        return {row["job"]: row["state"] for row in rows if row["state"] != "cancelled"}

    # What loses its directory has not begun: a job that is just starting would end by itself.
    later = "+cluster.directives.begin=now+1hour"
    there = (["run_id=kept"], ["run_id=elsewhere", f"runs_dir={tmp_path}/other"])
    gone = (["run_id=gone", later], ["-m", "sweep.id=swept", "seed=1,2", later])
    for words in (*there, *gone):
        done = launcher.submit(*words, *asleep)
        assert done.returncode == 0, done.stderr
    foreign = slurm.run(
        "sbatch", "--parsable", "--comment=launcher-not", "--wrap=sleep 60", "--output=/dev/null"
    ).strip()
    shutil.rmtree(launcher.runs_dir / "gone")
    shutil.rmtree(launcher.runs_dir / "swept")
    (launcher.runs_dir / "elsewhere").unlink()  # so that nothing here knows of it
    orphaned = {job for job, state in listed().items() if state == "orphaned"}
    assert len(orphaned) == 2, listed()
    told = launcher("status").stdout
    for job in orphaned:
        assert f"`python -m launcher cancel {job}` ends it" in told
    for job in orphaned:
        done = launcher("cancel", job)
        assert "is being cancelled" in done.stdout, done.stderr
    launcher.until(lambda: "orphaned" not in listed().values(), "they have ended")
    other = Run(tmp_path / "other" / "elsewhere")
    done = launcher("cancel", read_history(other).job_id or "")  # by its id
    assert done.stdout == "elsewhere is being cancelled\n", done.stderr
    assert other.has("cancelled")
    assert launcher("cancel", "999999").stderr.startswith("launcher: no run '999999' in ")
    launcher("cancel", "kept")
    slurm.run("scancel", foreign)
    launcher.until(lambda: not slurm.run("squeue", "--noheader", "--name=wrap"), "its node is free")
