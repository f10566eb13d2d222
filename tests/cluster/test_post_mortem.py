"""Post-mortems of real failures of every kind that a Slurm without GPUs can have.

All runs are submitted first and looked at one after the other, each on nodes where no other one's end disturbs it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.directory import Run
from launcher.runs.history import journal_events
from tests.launch import Launcher

pytestmark = pytest.mark.timeout(400)
ENDS, FAULTS = "tests.chaos.ends", "tests.chaos.faults"
NEVER = ("resume.how=never", "launch.grace=2")
HERE = ("cluster.exclude='node3,node4'",)  # the others are somebody's who is to lose them
SLEEPS = f"{ENDS}:sleeps"
HANGS = {"FAULT": "hang", "FAULT_TIMES": "2", "FAULT_RANK": "1", "COUNTING_SAVE_EVERY": "4"}
LATE = """\
import os, time
if os.environ.get("SLURMD_NODENAME") == "node2":
    time.sleep(600)
"""

# Entry and overrides of each run, by its id. Two agents, where ranks of several nodes are to be told apart.
RUNS: dict[str, tuple[str, ...]] = {
    "out-of-time": (f"{ENDS}:ignores_every_stop", "time=1m", "resume.lead=1s", *NEVER, *HERE),
    "node-lost": (SLEEPS, "nodes=2", "cluster.exclude='node1,node4'", *NEVER),
    "preempted": (SLEEPS, "+cluster.directives.nodelist=node4", "+cluster.directives.exclusive=true"),
    "scancelled": (SLEEPS, *NEVER, *HERE),
    "out-of-memory": (f"{ENDS}:takes_memory", "mem=600M", "cluster.partition=memory", *NEVER, *HERE),
    "no-rendezvous": (SLEEPS, "nodes=2", "launch.rendezvous_timeout=10", *NEVER, *HERE),
    "hangs": ("tests.chaos.counting:main", "procs_per_node=2", "launch.hang_timeout=5", "launch.max_restarts=1", *NEVER,
              *HERE),
    "raises": (f"{ENDS}:raises", "nodes=2", "procs_per_node=2", *NEVER, *HERE),
    "exits": (f"{FAULTS}:exits", *NEVER, *HERE),
    "is-killed": (f"{FAULTS}:is_killed", *NEVER, *HERE),
    "segfaults": (f"{FAULTS}:segfaults", *NEVER, *HERE),
    "one-exits": (f"{FAULTS}:exits", "nodes=2", *NEVER, *HERE),
    "one-crashes": (f"{FAULTS}:segfaults", "nodes=2", *NEVER, *HERE),
    "cannot-import": ("tests.chaos.imports_nothing:main", "procs_per_node=2", *NEVER, *HERE),
    "disk-full": (f"{ENDS}:fills_a_disk", *NEVER, *HERE),
    "memory-error": (f"{ENDS}:may_not_take_memory", *NEVER, *HERE),
}  # fmt: skip


class Runs:
    """The runs of this module, by name, and what `post-mortem` reports about them."""

    def __init__(self, launcher: Launcher, slurm: Any) -> None:
        self.launcher, self.slurm = launcher, slurm

    def submit(self, late: Path) -> None:
        for name, (entry, *overrides) in RUNS.items():
            if name == "no-rendezvous":
                overrides.append(f"+cluster.environment.PYTHONPATH={late}")
            if name == "out-of-memory":  # Slurm counts that of the processes below its own, which forks are not
                overrides.append(f"+cluster.environment.PYTHONPATH={late.with_name('plain')}")
            words = ["workload=collective", f"workload.entry={entry}", f"run_id={name}", "cluster=slurm", *overrides]
            done = self.launcher(*words, **(HANGS if name == "hangs" else {}))
            assert done.returncode == 0, done.stderr

    def job(self, name: str) -> str:
        run = Run(self.launcher.runs_dir / name)
        return next(str(event["job"]) for event in journal_events(run) if event["event"] == "submitted")

    def asleep(self, name: str, ranks: int = 1) -> None:
        """Waits until so many ranks of a run have printed `asleep`, the sign that their workload has started."""
        run = Run(self.launcher.runs_dir / name)

        def said() -> bool:
            return "".join(path.read_text() for path in run.outputs()).count("asleep") == ranks

        self.launcher.until(said, f"the ranks of {name} are asleep", 120)

    def examined(self, name: str, *options: str) -> dict[str, Any]:
        """Waits until a run is over, and returns the verdict of `post-mortem --json`."""
        told: dict[str, Any] = {}

        def over() -> bool:
            done = self.launcher("post-mortem", name, "--json", *options)
            assert done.stdout, done.stderr
            told.update(json.loads(done.stdout))
            if done.returncode:
                time.sleep(1)  # to ask takes work as well, and the runs need it
            return done.returncode == 0

        self.launcher.until(over, f"{name} is over", 180)
        return dict(told["verdict"])


@pytest.fixture
def runs(slurm: Any, tmp_path: Path) -> Iterator[Runs]:
    """All runs of this module, submitted, and disturbed (cancelled, killed, ...) as their tests need it."""
    for name in ("late", "plain"):
        (tmp_path / name).mkdir()
    (tmp_path / "plain" / "sitecustomize.py").touch()
    (tmp_path / "late" / "sitecustomize.py").write_text(LATE)
    made = Runs(Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}), slurm)
    made.submit(tmp_path / "late")
    made.asleep("out-of-time")  # first: Slurm knows no limit below a minute, but lets root move the end of one
    slurm.run("scontrol", "update", f"JobId={made.job('out-of-time')}", "EndTime=now+1")
    made.asleep("preempted")
    slurm.run(
        "sbatch", "--partition=urgent", "--nodelist=node4", "--exclusive", "--wrap=sleep 90", "--output=/dev/null"
    )
    made.asleep("scancelled")
    slurm.run("scancel", made.job("scancelled"))
    made.asleep("node-lost", 2)
    slurm.fail_node("node3", told=True)
    yield made
    slurm.reset()


@pytest.mark.ci
def test_every_kind_of_end_on_slurm(runs: Runs) -> None:
    """In one test, for all of them share one cluster and its nodes."""
    an_exception_is_told_with_its_traceback_and_who_only_followed(runs)
    ends_that_ranks_and_agents_tell(runs)
    a_crash_in_native_code_shows_where_python_was(runs)
    an_import_error_is_the_same_on_all_ranks(runs)
    a_rank_that_hangs_is_shown_with_the_stacks_of_all(runs)
    a_job_with_too_much_memory_is_told_how_much(runs)
    somebody_elses_scancel_is_told(runs)
    a_lost_node_is_named(runs)
    an_attempt_that_was_preempted_is_told_while_the_run_waits_again(runs)
    what_is_out_of_time_is_told_and_what_is_advised_works(runs)


def an_exception_is_told_with_its_traceback_and_who_only_followed(runs: Runs) -> None:
    told = runs.examined("raises")
    assert (told["kind"], told["rank"], told["host"]) == ("exception", 3, "node2")
    assert told["cause"] == "rank 3 on node2: ValueError: the loss is a banana"
    assert told["followed"] == [0, 1, 2]
    assert told["traceback"].splitlines()[-1] == "ValueError: the loss is a banana"
    assert told["log"] == ["rank 3 is about to compute"]
    shown = runs.launcher("post-mortem", "raises").stdout
    assert "ranks 0-2 only followed" in shown
    assert told["cause"] in runs.launcher("status", "raises").stdout  # all commands tell the same line


def ends_that_ranks_and_agents_tell(runs: Runs) -> None:
    for name, kind, cause in (
        ("exits", "exited", "exited with code 7"),
        ("is-killed", "killed", "killed by SIGKILL"),
        ("segfaults", "killed", "killed by SIGSEGV"),
        ("one-exits", "exited", "rank 1 on node2: exited with code 7"),
        ("one-crashes", "killed", "rank 1 on node2: killed by SIGSEGV"),
        ("cannot-import", "import-error", "No module named 'no_such_library'"),
        ("disk-full", "disk-full", "No space left on device"),
        ("memory-error", "out-of-memory", "MemoryError"),
        ("no-rendezvous", "rendezvous-timeout", "node2 (node 1) did not reach node1 (node 0) in time"),
    ):
        told = runs.examined(name)
        assert told["kind"] == kind, told
        assert cause in told["cause"]
        assert os.path.exists(told["files"]["output"])


def a_crash_in_native_code_shows_where_python_was(runs: Runs) -> None:
    (stack,) = runs.examined("segfaults")["stacks"]
    assert any("faults.py" in frame for frame in stack["frames"]), stack


def an_import_error_is_the_same_on_all_ranks(runs: Runs) -> None:
    told = runs.examined("cannot-import")
    assert (len(told["same"]), told["followed"], "importlib" in told["traceback"]) == (1, [], False)


def a_rank_that_hangs_is_shown_with_the_stacks_of_all(runs: Runs) -> None:
    told = runs.examined("hangs")
    assert (told["kind"], told["rank"], len(told["restarts"])) == ("hang", 1, 1)
    frames = {rank: each["frames"] for each in told["stacks"] for rank in each["ranks"]}
    assert "_go_wrong" in frames[1][0]
    assert "all_reduce" in frames[0][0]


def a_job_with_too_much_memory_is_told_how_much(runs: Runs) -> None:
    told = runs.examined("out-of-memory")
    assert told["kind"] == "out-of-memory", told
    assert told["memory"]["limit"] == 600 << 20
    assert told["memory"]["used"] > 600 << 20
    assert told["todo"][0]["command"].startswith("python -m launcher resume out-of-memory mem=")


def somebody_elses_scancel_is_told(runs: Runs) -> None:
    assert runs.examined("scancelled")["kind"] == "cancelled"


def a_lost_node_is_named(runs: Runs) -> None:
    told = runs.examined("node-lost")
    assert (told["kind"], told["host"]) == ("node-lost", "node3"), told
    assert "cluster.exclude='node1,node4,node3'" in " ".join(str(each["command"]) for each in told["todo"])


def an_attempt_that_was_preempted_is_told_while_the_run_waits_again(runs: Runs) -> None:
    told = runs.examined("preempted", "--attempt", "0")
    assert told["kind"] == "preempted", told


def what_is_out_of_time_is_told_and_what_is_advised_works(runs: Runs) -> None:
    told = runs.examined("out-of-time")
    assert told["kind"] == "wall-time", told
    command = told["todo"][0]["command"]
    assert command == "python -m launcher resume out-of-time time=00:02:00"
    done = runs.launcher(*command.split()[3:], "dry_run=true")
    assert "00:02:00" in done.stdout, done.stderr
