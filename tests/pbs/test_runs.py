"""Runs on PBS: what only PBS makes difficult. What every backend does is in tests/contract/test_runs.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from launcher.runs.lookup import all_runs
from tests import warm_python
from tests.contract.test_runs import processes_of
from tests.launch import PYTHON, ROOT, Launcher, Result
from tests.markers import ci
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs

SLEEPS = ("workload=collective", "workload.entry=tests.chaos.faults:sleeps", "nodes=2", "procs_per_node=2")
P2P = ("workload=p2p", "nodes=2")


def until_asleep(launcher: Launcher) -> None:
    launcher.until(lambda: launcher.printed().count("asleep") == 4, "all ranks are asleep")


def test_the_script_asks_for_what_the_keys_say(launcher: Launcher) -> None:
    done = launcher.submit(
        "workload=p2p", "nodes=2", "gpus_per_node=4", "cpus_per_proc=2", "mem=100M", "time=24:00:00",
        "cluster.project=11003281", "+cluster.chunk.host=pbs-n2", "+cluster.resources.filesystems='home:eagle'",
        "+cluster.directives.m=abe", "dry_run=true", "cluster.check=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("#PBS")]
    assert lines[:8] == [
        "#PBS -N p2p", "#PBS -P 11003281",
        "#PBS -l select=2:ncpus=8:mpiprocs=1:ompthreads=2:ngpus=4:mem=102400kb:host=pbs-n2", "#PBS -l place=scatter",
        "#PBS -l walltime=24:00:00", "#PBS -l filesystems=home:eagle", "#PBS -r y",
        f"#PBS -o {launcher.runs_dir}/{run_id(done.stdout)}/",
    ]  # fmt: skip
    assert lines[-1] == "#PBS -m abe"


def run_id(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith("run "))


def test_submitting_returns_at_once_and_the_run_is_followed_later(launcher: Launcher) -> None:
    done = launcher.submit(*SLEEPS)
    assert done.returncode == 0, done.stderr
    assert "job        " in done.stdout
    until_asleep(launcher)
    row = launcher.status()
    assert row["state"] == "running"
    assert launcher("cancel", "latest").returncode == 0
    assert launcher("wait", "latest", "-q").returncode == 1
    assert launcher.status()["state"] == "cancelled"


@pytest.mark.parametrize("how", ["qdel", ci("cancel")])
def test_a_run_that_is_deleted_while_its_agents_start_records_its_end(
    site: PbsCluster | RealPbs, launcher: Launcher, how: str
) -> None:
    """PBS tells the first node only, starts nothing more, and kills what is left."""
    if isinstance(site, PbsCluster):
        site.set(kill_delay=60)  # a busy machine may need more than the stand-in's 3 s
    launcher.submit(*SLEEPS)
    launcher.until(lambda: launcher.status()["state"] == "running", "it runs")
    tasks = launcher.last().path / "attempts/0/tasks"
    launcher.until(lambda: (tasks / "1.pid").exists() and (tasks / "1.pid").read_text(), "the second agent starts")
    if how == "qdel":
        subprocess.run(["qdel", str(launcher.status()["job"])], env=launcher.environ, check=True)
    else:
        launcher("cancel", "latest")
    launcher("wait", "latest", "-q")
    events = {event["event"]: event for event in launcher.last().attempts()[-1].events()}
    assert events["stop_requested"]["signal"] == "SIGTERM"
    code = events["ended"]["code"]
    assert code in (75, 143)  # 75: its ranks had not started either
    assert launcher.status()["state"] == ("stopped" if how == "qdel" and code == 75 else "cancelled")
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 15)


def test_a_run_that_is_killed_before_it_can_record_its_end_is_what_its_agents_wrote(
    stand_in: PbsCluster, stand_in_launcher: Launcher
) -> None:
    stand_in.set(history=False)
    stand_in_launcher.submit(*SLEEPS)
    until_asleep(stand_in_launcher)
    stand_in_launcher.last().attempts()[-1].write_exit_code(75)
    subprocess.run(["qdel", "-W", "force", str(stand_in_launcher.status()["job"])], check=True)
    stand_in_launcher.until(lambda: stand_in_launcher.status()["state"] == "stopped", "it can be resumed")


@pytest.mark.slow
def test_a_run_that_is_out_of_time_says_so(launcher: Launcher) -> None:
    launcher.submit(*SLEEPS, "time=8s", "resume.lead=1s", "launch.grace=2")
    assert launcher("wait", "latest", "-q", timeout=120).returncode == 1
    row = launcher.status()
    assert row["state"] == "failed"
    assert "was asked to stop by SIGTERM" in row["cause"] or "TIMEOUT" in row["cause"]
    launcher.until(lambda: not processes_of(launcher), "no process of the run is left", 15)


def test_a_wall_time_that_was_changed_while_the_job_waited_is_the_one_that_counts(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Users shorten it with qalter so that their job starts sooner; hooks of sites do so, too."""
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('left', os.environ['LAUNCHER_TIME_LEFT'])\n")
    launcher.submit("run", str(script), "cluster.directives.h=true", "time=1h", "wait=false")
    job = str(launcher.status()["job"])
    for command in (["qalter", "-l", "walltime=00:05:00"], ["qrls"]):
        subprocess.run([*command, job], env=launcher.environ, check=True)
    assert launcher("wait", "latest", "-q").returncode == 0
    (line,) = (launcher.last().attempts()[-1].logs / "rank-0.out").read_text().splitlines()
    assert 240 <= int(line.removeprefix("left ")) <= 300


def test_ranks_of_all_nodes_are_told_to_stop(launcher: Launcher) -> None:
    """PBS itself tells the first node only."""
    launcher.submit(*SLEEPS[:1], "workload.entry=tests.chaos.faults:says_that_it_was_told", *SLEEPS[2:])
    until_asleep(launcher)
    launcher("cancel", "latest")
    launcher("wait", "latest", "-q")
    logs = launcher.last().attempts()[-1].logs
    told = [rank for rank in range(4) if "told to stop" in (logs / f"rank-{rank}.out").read_text()]
    assert told == [0, 1, 2, 3]
    assert launcher.status()["cause"] == "it was cancelled"
    assert "exited without an error report" not in launcher.status()["cause"]


@pytest.mark.parametrize("how", ["ends", ci("is killed")])
def test_what_a_rank_hides_with_setsid_does_not_outlive_the_run(launcher: Launcher, how: str) -> None:
    seconds = f"1001{os.getpid()}"
    launcher.submit(*SLEEPS[:1], "workload.entry=tests.chaos.faults:hides_a_process", *SLEEPS[2:], HIDDEN=seconds)
    until_asleep(launcher)
    if how == "is killed":
        subprocess.run(["qdel", "-W", "force", str(launcher.status()["job"])], env=launcher.environ, check=True)
    else:
        launcher("cancel", "latest")
    launcher("wait", "latest", "-q")
    launcher.until(lambda: not sleeping(seconds), "nothing is left", 15)


def sleeping(seconds: str) -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line == f"sleep {seconds}"]


def test_a_job_that_can_never_run_says_why(launcher: Launcher) -> None:
    launcher.submit(*P2P, "cpus_per_proc=5000", "cluster.check=false")
    launcher.until(lambda: "Can Never Run" in (launcher.status()["reason"] or ""), "PBS says so")
    assert launcher.status()["state"] == "queued"
    said = launcher("status", "latest").stdout
    assert "Can Never Run: Insufficient amount of resource: ncpus" in said
    waiting = subprocess.Popen(
        [PYTHON, "-m", "launcher", "wait", "latest"], env=launcher.environ, cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr is not None
    assert "queued: Q (Can Never Run: Insufficient" in waiting.stderr.readline()
    launcher("cancel", "latest")
    assert "cancelled" in waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["cluster.queue=wrokq"], "cluster.queue=wrokq: there is no such queue. Did you mean workq? Known: workq"),
        (
            ["cluster.queue=debug", "time=2h"],
            "queue debug ends jobs after 00:10:00: use time=00:10:00 or less; or clus",
        ),
        (["cluster.queue=small"], "nodes=2: queue small gives a job at most 1 node: ask for less; or cluster.queue="),
        (["gpus_per_node=9"], "gpus_per_node=9: the nodes of this PBS have at most "),
        (
            ["cpus_per_proc=5000"],
            "procs_per_node=1 x cpus_per_proc=5000 = 5000 CPUs: the nodes of this PBS have ",
        ),
        (["mem=900T"], "mem=900T: the nodes of this PBS have at most "),
        (["nodes=3"], "nodes=3: this PBS has 2 nodes in all: use nodes=2 or less"),
        (["cluster.partition=gpu"], "cluster.partition is a key for slurm, and the cluster is pbs: use cluster.queue"),
        (
            ["cluster.gpu_directive=gres", "gpus_per_node=1"],
            "gpu_directive=gres: it must be one of ngpus, none",
        ),
        (["+cluster.directives.N=x"], "the qsub option -N cannot be among the directives: use name"),
        (["+cluster.directives.queue=x"], "'queue' is not the letter of a qsub option"),
        (["+cluster.chunk.ngpus='1:2'"], "ngpus='1:2' cannot be a resource of a chunk"),
        (["cluster.mpiexec=[mpiexec,'{task}']"], "mpiexec: 'task' cannot be filled in"),
    ],
)
def test_a_bad_request_is_told_and_leaves_nothing(launcher: Launcher, overrides: list[str], words: str) -> None:
    done = launcher.submit(*P2P, *overrides)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
    assert not launcher.runs_dir.exists()


def test_what_pbs_refuses_is_told_in_its_words_and_leaves_nothing(launcher: Launcher) -> None:
    done = launcher.submit(*P2P, "+cluster.chunk.nosuch=1")
    assert done.returncode == 1
    assert "qsub refused the job: Unknown resource: nosuch (`pbsnodes -av` shows what the nodes have" in done.stderr
    assert not all_runs(launcher.runs_dir)


def test_another_qsub_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/qsub").write_text("#!/usr/bin/perl\nuse Slurm ':all';\n")
    (tmp_path / "bin/qsub").chmod(0o755)
    launcher = Launcher(tmp_path / "runs", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, ["cluster=pbs"])
    done = launcher.submit(*P2P)
    assert done.returncode == 1
    assert "is not PBS's qsub but Slurm's wrapper around sbatch" in done.stderr
    assert "use cluster=slurm" in done.stderr
    assert not launcher.runs_dir.exists()
    shown = launcher.submit(*P2P, "dry_run=true")
    assert shown.returncode == 0
    assert "#PBS -l select=2" in shown.stdout


@pytest.mark.parametrize("history", [True, ci(False)])
def test_a_lost_answer_makes_no_second_job(stand_in: PbsCluster, stand_in_launcher: Launcher, history: bool) -> None:
    stand_in.set(history=history)
    stand_in.hang(5)
    result = fine(stand_in_launcher, "cluster.submit_timeout=2")
    assert result.code == 0, result.output
    assert "no answer (qsub did not answer within 2 s)" in result.output
    assert stand_in.submissions() == 1


@pytest.mark.slow
@pytest.mark.parametrize("history", [True, False])
def test_a_submitter_that_was_killed_is_repeated_without_a_second_job(
    stand_in: PbsCluster, stand_in_launcher: Launcher, history: bool
) -> None:
    stand_in.set(history=history)
    stand_in.hang(20)
    words = [*FINE, *stand_in_launcher.overrides, "run_id=once"]
    process = subprocess.Popen(
        [warm_python.python(), "-m", "launcher", *words], env=stand_in_launcher.environ, cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not stand_in.submissions():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    stand_in.hang(0)
    again = fine(stand_in_launcher, "run_id=once")
    assert again.code == 0, again.output
    assert stand_in.submissions() == 1
    assert len(again.run.attempts()) == 1


FINE = ("workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=2")


def fine(launcher: Launcher, *overrides: str) -> Result:
    return launcher.run(*FINE, *overrides)


def test_a_server_that_does_not_answer_leaves_the_state_unknown(
    stand_in: PbsCluster, stand_in_launcher: Launcher
) -> None:
    stand_in_launcher.submit(*SLEEPS)
    until_asleep(stand_in_launcher)
    stand_in.down()
    row = stand_in_launcher.status()
    assert row["state"] == "unknown"
    assert "cannot connect to server" in row["reason"]
    stand_in.up()
    stand_in_launcher.until(lambda: stand_in_launcher.status()["state"] == "running", "an answer that is newer")
    stand_in_launcher("cancel", "latest")


def test_a_killed_run_of_a_server_without_history_is_lost(stand_in: PbsCluster, stand_in_launcher: Launcher) -> None:
    stand_in.set(history=False)
    stand_in_launcher.submit(*SLEEPS)
    until_asleep(stand_in_launcher)
    row = stand_in_launcher.status()
    subprocess.run(["qdel", "-W", "force", str(row["job"])], check=True)
    stand_in_launcher.until(lambda: stand_in_launcher.status()["state"] == "unknown", "PBS has forgotten it")
    os.utime(Path(str(row["directory"]), "lease"), (0, 0))  # its last heartbeat was long ago
    stand_in_launcher.until(lambda: stand_in_launcher.status()["state"] in ("lost", "failed", "stopped"), "it is over")
    assert [stand_in_launcher.status()[key] for key in ("state", "code")] == ["lost", None]


def test_many_runs_cost_one_qstat(stand_in: PbsCluster, stand_in_launcher: Launcher) -> None:
    stand_in.freeze_scheduler()
    for _ in range(3):
        stand_in_launcher.submit(*P2P)
    before = len(stand_in.calls("qstat"))
    assert stand_in_launcher("status").stdout.count("queued") == 3
    assert len(stand_in.calls("qstat")) - before == 1


def test_a_rerun_is_the_next_attempt(stand_in: PbsCluster, stand_in_launcher: Launcher) -> None:
    stand_in_launcher.submit(*SLEEPS)
    until_asleep(stand_in_launcher)
    stand_in.rerun(str(stand_in_launcher.status()["job"]))
    stand_in_launcher.until(lambda: stand_in_launcher.printed().count("asleep") == 8, "it runs again")
    assert [attempt.number for attempt in stand_in_launcher.last().attempts()] == [0, 1]
    assert stand_in_launcher.status()["state"] == "running"
    stand_in_launcher("cancel", "latest")


@pytest.mark.slow
def test_a_profile_may_have_the_tasks_started_by_mpiexec(launcher: Launcher, tmp_path: Path) -> None:
    """A stand-in for MPICH's: it tells every task its rank, and all are on this host."""
    program = tmp_path / "mpiexec"
    program.write_text(MPIEXEC)
    program.chmod(0o755)
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.faults:tells", "nodes=1", "procs_per_node=2",
        "launch=tasks", f"cluster.mpiexec=[{program},-n,'{{tasks}}',-ppn,'{{tasks_per_node}}']",
        "cluster.setup=['export FROM_SETUP=\"two words\"']", FROM_SHELL="of the user",
    )  # fmt: skip
    assert result.code == 0, result.output
    assert result.metrics["environments"] == [["two words", None, "of the user"]] * 2
    assert not list(result.run.path.rglob("tasks/environment.sh"))
    failed = launcher.fault("raises", "nodes=1", "launch=tasks", f"cluster.mpiexec=[{program},-n,'{{tasks}}']")
    assert failed.code == 1
    assert "the loss is a banana" in failed.output


MPIEXEC = """#!/bin/bash
# mpiexec -n TASKS [-ppn N] COMMAND...: nothing of the environment is handed on.
tasks=$2; shift 2
[ "$1" = -ppn ] && shift 2
for rank in $(seq 0 $((tasks - 1))); do
  env -i PATH=/usr/bin:/bin PBS_NODEFILE="$PBS_NODEFILE" PBS_JOBID="$PBS_JOBID" \\
    PMI_RANK=$rank PMI_SIZE=$tasks MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=$tasks "$@" &
done
code=0
for _ in $(seq $tasks); do wait -n || code=$?; done
exit $code
"""


@pytest.mark.slow
def test_it_works_from_a_home_with_nothing_in_it(stand_in: PbsCluster, stand_in_launcher: Launcher) -> None:
    """A bare PATH in the job: what it needs comes from the run's own file."""
    profile = (stand_in.home / ".profile").read_text()
    (stand_in.home / ".profile").write_text("export PATH=/usr/bin:/bin\n")
    try:
        assert fine(stand_in_launcher).code == 0
    finally:
        (stand_in.home / ".profile").write_text(profile)


def test_secrets_reach_the_ranks_of_all_nodes_through_no_file_of_the_run(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "assert os.environ['HF_TOKEN'] [::-1] == 'terces-tsrif' and os.environ['API_KEY'][::-1] == 'terces-dnoces'\n"
        "assert os.environ['FROM_SET_UP_TOKEN'][::-1] == 'terces-driht'\n"
        "print('rank', os.environ['RANK'], 'has them')\n"
    )
    (tmp_path / "hidden").write_text("third-secret")
    own = tmp_path / "own"
    result = launcher.run(
        "workload=program", f"workload.script={script}", "nodes=2", "+cluster.environment.API_KEY=second-secret",
        f"env.setup=['export FROM_SET_UP_TOKEN=$(cat {tmp_path}/hidden)']",
        HF_TOKEN="first-secret", LAUNCHER_SECRETS_DIR=str(own),
    )  # fmt: skip
    assert result.code == 0, result.output
    assert "rank 0 has them" in result.output
    assert "rank 1 has them" in result.output
    files = [path for path in launcher.runs_dir.rglob("*") if path.is_file()]
    for value in (b"first-secret", b"second-secret", b"third-secret"):
        assert not [path for path in files if value in path.read_bytes()]
    assert not [path for path in own.rglob("*") if path.is_file()]


@pytest.mark.ci
def test_a_job_whose_run_directory_is_gone_is_listed_and_can_be_cancelled(launcher: Launcher) -> None:
    """Also one of an array; its token and its directory are in the job's full record alone."""
    later = ("workload=p2p", "+cluster.directives.a=01010101", "cluster.check=false")  # of the next first of January

    def listed() -> dict[str, str]:
        return {row["run"]: row["state"] for row in json.loads(launcher("status", "--json").stdout)}

    for words in (["run_id=kept"], ["run_id=gone"], ["-m", "sweep.id=swept", "workload.seed=1,2"]):
        done = launcher.submit(*words, *later, "wait=false")
        assert done.returncode == 0, done.stderr
    for name in ("gone", "swept"):
        shutil.rmtree(launcher.runs_dir / name)
    states = listed()
    assert [states[name] for name in ("kept", "gone", "swept")] == ["queued", "orphaned", "orphaned"]
    jobs = {row["run"]: row["job"] for row in json.loads(launcher("status", "--json").stdout)}
    for name in ("gone", "swept"):
        done = launcher("cancel", jobs[name])
        assert "is being cancelled" in done.stdout, done.stderr
    launcher.until(lambda: "orphaned" not in listed().values(), "they have ended")
    assert listed()["kept"] == "queued"
    assert launcher("cancel", "kept").returncode == 0
