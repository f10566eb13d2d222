"""The test cluster is a real Slurm: it behaves like one, tells what went wrong, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import host, slurm_cluster, slurm_config
from tests.cluster.daemons import Proc, running, wait_until
from tests.cluster.slurm_cluster import ClusterError, SlurmCluster
from tests.cluster.slurm_config import NODES

pytestmark = pytest.mark.slow  # whatever runs on it in `make test` would not, if it did not behave
ROOT = Path(__file__).parents[2]
RESTARTS = "echo restarts ${SLURM_RESTART_COUNT:-0}"
COMMAND = [sys.executable, str(ROOT / "tests/cluster/slurm_cluster.py")]


def submit(cluster: SlurmCluster, folder: Path, script: str, *options: str) -> tuple[str, Path]:
    """Submits a bash script; returns the job id, and the output file, to which each start of the job appends."""
    output = folder / f"{time.monotonic_ns()}.out"
    path = output.with_suffix(".sh")
    path.write_text(f"#!/bin/bash\n{script}\n")
    options = ("--parsable", f"--output={output}", "--open-mode=append", *options)
    return cluster.run("sbatch", *options, str(path)).strip(), output


def said(output: Path, text: str, *, timeout_s: float = 60.0) -> bool:
    """Returns whether a job's output has this line within `timeout_s` seconds."""
    return wait_until(lambda: output.exists() and text in output.read_text().splitlines(), timeout_s=timeout_s)


def state(cluster: SlurmCluster, job: str) -> str:
    """Returns a job's state as squeue shows it (`RUNNING`)."""
    return cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def printed(*argv: str) -> str:
    """Returns the standard output of a command; fails if the command does."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def leftovers(folder: Path) -> list[Proc]:
    """Returns the processes that belong to the cluster in this folder."""
    return [
        proc
        for proc in running()
        if f"SLURM_CONF={folder}/slurm.conf" in proc.environment()
        or any(path.startswith(f"{folder}/") for path in proc.open_files())
    ]


# -- it is a real Slurm


def test_all_four_nodes_are_idle(slurm: SlurmCluster) -> None:
    assert slurm.states() == dict.fromkeys(NODES, "idle")


def test_two_nodes_are_numbered_0_and_1(slurm: SlurmCluster) -> None:
    seen = slurm.run("srun", "--nodes=2", "bash", "-c", "echo $SLURM_NODEID $SLURMD_NODENAME $SLURM_JOB_NODELIST")
    assert sorted(seen.splitlines()) == ["0 node1 node[1-2]", "1 node2 node[1-2]"]


@pytest.mark.parametrize(("gpus", "visible"), [(0, ""), (1, "0"), (2, "0,1")])
def test_a_job_sees_the_gpus_it_asked_for(slurm: SlurmCluster, gpus: int, visible: str) -> None:
    options = ["--nodes=2", f"--gpus-per-node={gpus}"] if gpus else ["--nodes=2"]
    seen = slurm.run("srun", *options, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert seen.splitlines() == [visible] * 2


def test_more_gpus_than_a_node_has_are_refused(slurm: SlurmCluster) -> None:
    with pytest.raises(ClusterError, match="node configuration is not available"):
        slurm.run("srun", "--gres=gpu:3", "true")


@pytest.mark.usefixtures("slurm")
def test_node_names_resolve() -> None:
    assert {socket.gethostbyname(name) for name in NODES} == {"127.0.0.1"}


def test_a_requeue_counts_the_restart(slurm: SlurmCluster, tmp_path: Path) -> None:
    job, output = submit(
        slurm, tmp_path, RESTARTS + "; [ $SLURM_RESTART_COUNT ] || scontrol requeue $SLURM_JOB_ID; sleep 5"
    )
    assert said(output, "restarts 1")
    assert "restarts 0" in output.read_text().splitlines()
    slurm.run("scancel", job)


def test_an_urgent_job_takes_the_place_of_a_normal_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    normal, output = submit(slurm, tmp_path, f"{RESTARTS}; sleep 60", "--nodes=4", "--exclusive")
    assert said(output, "restarts 0")
    _, urgent = submit(slurm, tmp_path, "echo went first", "--nodes=2", "--exclusive", "--partition=urgent")
    assert said(urgent, "went first")
    assert state(slurm, normal) == "PENDING"
    assert said(output, "restarts 1")
    slurm.reset()


def test_the_debug_partition_warns_before_it_preempts(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = 'trap "echo warned; sleep 3; echo saved; exit 75" TERM; echo ready; sleep 60 & wait'
    _, output = submit(
        slurm, tmp_path, f"srun bash -c '{script}'; echo $?", "--nodes=2", "--exclusive", "--partition=debug"
    )
    assert said(output, "ready")
    submit(slurm, tmp_path, "true", "--nodes=4", "--exclusive", "--partition=urgent")
    assert said(output, "saved", timeout_s=20), output.read_text()
    slurm.reset()


def test_normal_jobs_wait_for_each_other(slurm: SlurmCluster, tmp_path: Path) -> None:
    first, output = submit(slurm, tmp_path, "echo started; sleep 60", "--nodes=4", "--exclusive")
    assert said(output, "started")
    second, _ = submit(slurm, tmp_path, "true", "--partition=debug", "--exclusive")
    time.sleep(3)
    assert (state(slurm, first), state(slurm, second)) == ("RUNNING", "PENDING")
    slurm.reset()


def test_a_job_goes_on_without_a_lost_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = "srun --no-kill --kill-on-bad-exit=0 bash -c 'echo ready $SLURM_NODEID; sleep 4; echo done $SLURM_NODEID'"
    _, output = submit(slurm, tmp_path, script, "--nodes=2", "--no-kill")
    assert said(output, "ready 0")
    assert said(output, "ready 1")
    slurm.fail_node("node2", told=True)
    assert said(output, "done 0")
    assert "done 1" not in output.read_text()
    assert slurm.states()["node2"] in ("drained", "drained*")
    slurm.reset()
    assert slurm.states()["node2"] == "idle"


@pytest.mark.slow
def test_slurm_finds_out_about_a_lost_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    _, output = submit(slurm, tmp_path, f"{RESTARTS}; sleep 60", "--nodes=2")
    assert said(output, "restarts 0")
    slurm.fail_node("node2")
    assert wait_until(lambda: slurm.states()["node2"] == "down*", timeout_s=60, every_s=0.5)
    assert said(output, "restarts 1")
    slurm.reset()


def test_without_accounting_sacct_fails(slurm: SlurmCluster) -> None:
    with pytest.raises(ClusterError, match="accounting storage is disabled"):
        slurm.run("sacct")


def test_with_accounting_sacct_tells_how_a_job_ended(slurm_with_accounting: SlurmCluster, tmp_path: Path) -> None:
    job, _ = submit(slurm_with_accounting, tmp_path, "exit 3")
    ask = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={job}")
    assert wait_until(lambda: slurm_with_accounting.run(*ask).strip() == "FAILED|3:0", timeout_s=20, every_s=0.3)


# -- it comes up beside others, and leaves nothing


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder with a short path: tmp_path is too long for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="room-") as folder:
        yield Path(folder)


def test_a_second_cluster_runs_beside_the_first_and_leaves_nothing(slurm: SlurmCluster, room: Path) -> None:
    with SlurmCluster(room / "second") as second:
        _, output = submit(second, room, "echo on $SLURMD_NODENAME; (trap '' TERM; setsid sleep 600)", "--nodes=2")
        assert said(output, "on node1")
        assert slurm.run("squeue", "--noheader") == ""
        assert len(leftovers(second.folder)) >= 1 + 1 + 4  # munged, slurmctld, four slurmd; and the job
    assert leftovers(second.folder) == []
    assert not second.folder.exists()
    assert second.folder not in host.owners()
    assert slurm.states() == dict.fromkeys(NODES, "idle")
    second.stop()  # a second time does no harm


@pytest.mark.usefixtures("slurm")
def test_the_next_start_clears_away_what_a_killed_test_run_left(room: Path) -> None:
    code = "import os, sys; from tests.cluster.slurm_cluster import *; SlurmCluster(sys.argv[1]).start(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, room / "orphan"], cwd=ROOT, check=False).returncode == 9
    assert leftovers(room / "orphan")
    with SlurmCluster(room / "next"):
        assert not (room / "orphan").exists()
    assert leftovers(room / "orphan") == []


@pytest.mark.usefixtures("slurm")
def test_the_command_line_brings_a_cluster_up_and_down(room: Path) -> None:
    folder = room / "by-hand"
    folder.mkdir()
    (room / "mine").write_text("not a cluster")
    for action in ("up", "env"):
        exports = printed(*COMMAND, action, "--dir", str(folder))
        assert printed("bash", "-c", f"{exports}\nsinfo -h -N -p debug -o '%N %T'") == "node1 idle\nnode2 idle\n"
    refused = subprocess.run([*COMMAND, "up", "--dir", folder], capture_output=True, text=True, check=False)
    assert (refused.returncode, "is not empty" in refused.stderr) == (1, True)
    for down in (folder, room):
        assert printed(*COMMAND, "down", "--dir", str(down)) == ""
    assert not folder.exists()
    assert (room / "mine").exists(), "down removes nothing but a cluster"


@pytest.mark.usefixtures("slurm")
def test_a_failed_start_shows_the_logs_and_leaves_nothing(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_config, "SLURM_CONF", slurm_config.SLURM_CONF + "PartitionName=none Nodes=node[7-9]\n")
    with pytest.raises(ClusterError, match=r"(?s)slurmctld ended by itself.*--- slurmctld.*fatal: Invalid node names"):
        SlurmCluster(room / "broken").start()
    assert leftovers(room / "broken") == []
    assert not (room / "broken").exists()


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("name", ["with space", "x" * 70, "semi;colon"])
def test_a_folder_that_slurm_cannot_take_is_refused(room: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="at most 70 characters"):
        SlurmCluster(room / name).start()
    assert not (room / name).exists()


# -- what the clusters of a host share


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hosts file and a register for this test, in place of those of the machine; the path of the hosts file."""
    monkeypatch.setattr(host, "REGISTER", tmp_path / "register.json")
    monkeypatch.setattr(host, "HOSTS", tmp_path / "hosts")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.0.0.1 node1 # the site's own\n")
    return tmp_path / "hosts"


def test_the_last_cluster_takes_its_names_out_of_the_hosts_file(hosts: Path, tmp_path: Path) -> None:
    before = hosts.read_text()
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    ports = host.join(one, 6, NODES, owner=None) + host.join(two, 6, NODES, owner=None)
    assert len(set(ports)) == 12
    names = [line.split()[1] for line in hosts.read_text().splitlines() if host.MARK in line]
    assert names == ["node2", "node3", "node4"], "node1 resolved already"
    host.leave(one)
    assert host.MARK in hosts.read_text()
    host.leave(two)
    assert hosts.read_text() == before


@pytest.mark.usefixtures("hosts")
def test_ports_that_somebody_listens_on_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(host, "PORTS", range(port, port + 2))
        with pytest.raises(RuntimeError, match="free TCP ports"):
            host.join(tmp_path, 1, NODES, owner=None)


# -- saying why it cannot run


def no_database(name: str) -> str | None:
    """Returns the path of a program on a machine that has Slurm, but no accounting; None: it is not installed."""
    return f"/usr/bin/{name}" if name in slurm_cluster.NEEDED else None


@pytest.mark.parametrize(
    ("attribute", "value", "accounting", "reason"),
    [
        ("_which", lambda name: None, False, "slurmctld, slurmd, sbatch not installed: run tests/setup_debian.sh"),
        (
            "_which",
            no_database,
            True,
            "slurmdbd, mariadbd, mariadb-install-db not installed: run tests/setup_debian.sh",
        ),
        ("_which", no_database, False, None),
        ("os.geteuid", lambda: 1000, False, "not root"),
        ("os.access", lambda path, mode: False, False, "hosts cannot be written"),
        ("sys.platform", "darwin", False, "needs Linux"),
    ],
)
def test_missing_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, accounting: bool, reason: str | None
) -> None:
    monkeypatch.setattr(slurm_cluster, "_which", lambda name: name)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.access", lambda path, mode: True)
    monkeypatch.setattr(f"tests.cluster.slurm_cluster.{attribute}", value)
    told = SlurmCluster.missing(accounting=accounting)
    assert told is None if reason is None else reason in str(told)


PROBE = """
import pytest
def test_needs_slurm(slurm): ...
def test_needs_slurm_too(slurm): ...
@pytest.mark.backend("local", "this machine")
def test_here(): ...
@pytest.mark.backend("pbs", "a stand-in")
def test_learns_the_truth(ran_against): ran_against("pbs", "OpenPBS 23.06, 2 nodes")
@pytest.mark.backend("local", "this machine")
def test_fails_at_the_end(request): request.addfinalizer(lambda: 1 / 0)
def test_counts_nowhere(): ...
"""
NO_SLURM = """
from tests.cluster.slurm_cluster import INSTALL, SlurmCluster
SlurmCluster.missing = classmethod(lambda cls, accounting=False: f"slurmctld not installed: {INSTALL}")
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(("ci", "failed", "skipped"), [("", "-", "2"), ("true", "2", "-")], ids=["desk", "ci"])
def test_the_table_says_what_ran_against_what(
    tmp_path: Path, workers: list[str], ci: str, failed: str, skipped: str
) -> None:
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "conftest.py").write_text(NO_SLURM)
    env = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    options = ["-ptests.conftest", "--strict-markers", "-c/dev/null", f"--rootdir={tmp_path}", *workers]
    argv = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    shown = done.stdout.partition("which backend ran against what")[2]
    rows = [line.rstrip() for line in shown.partition("\n")[2].partition("\n=====")[0].splitlines()]
    assert max(map(len, rows)) <= 80
    assert [row.split() for row in rows[:4]] == [
        ["backend", "ran", "against", "passed", "failed", "skipped"],
        ["local", "this", "machine", "1", "1", "-"],
        ["pbs", "OpenPBS", "23.06,", "2", "nodes", "1", "-", "-"],
        ["slurm", "Slurm,", "4", "real", "nodes,", "no", "accounting", "-", failed, skipped],
    ]
    because = "skipped: slurmctld not installed: run tests/setup_debian.sh as root"
    assert " ".join(" ".join(rows[4:]).split()) == ("" if ci else because)
