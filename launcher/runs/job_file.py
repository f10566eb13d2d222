"""What a job knows: job.json beside the script, for its driver (one for a whole array); its environment; its time.

A field that is added has a default: jobs that wait in a queue have a file of the version that submitted them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.fast_dataclasses import Open, Struct

NAME, AFTER = "job.json", "after.sh"  # names in the run directory


class SetupLineFields(Open):
    words: str  # what the event `setup_failed` calls a set-up line of the script


class LeaseTimes(Struct):
    """The times of `launcher.runs.lease_and_locks`, in seconds. All jobs of a run use those of its submission."""

    heartbeat: float  # between two heartbeats of the job that holds the lease
    poll: float  # between two checks by a job that waits for it
    timeout: float  # without a heartbeat until it is taken over


class JobFile(Struct):
    """The run's commands, times and variables. Commands are argument lists."""

    run_dir: str  # for an array: the folder with the elements' run directories
    start: tuple[str, ...]  # starts another command on all nodes
    node: tuple[str, ...]  # the command of each node; the run directory is appended
    requeue: tuple[str, ...]  # decides whether the run continues after an attempt
    wait: tuple[str, ...]  # waits for other runs (`after`); empty: there are none
    signals: tuple[str, ...]  # those that ask the job to stop: TERM, INT
    no_workdir: str  # the error where the working folder cannot be entered
    setup: tuple[SetupLineFields, ...]
    environment: Mapping[str, str | None]  # null: the variable is unset
    secrets: tuple[str, ...]  # patterns of the names of secret variables
    secret_variables: tuple[str, ...]  # those that must have reached the job
    checkpoints: str
    all_nodes: bool  # whether the run needs all its nodes
    program_resumes: bool
    chain: bool  # resume.how=chain: the jobs that follow are queued already
    here: bool  # whether the job is a process of the submitting machine
    lease: LeaseTimes
    elements: str | None = None  # file with the names of the elements' run directories, one a line
    after: str | None = None  # the template's `after` block, a shell script
    seconds: int | None = None  # wall time; null: the scheduler does not end the job
    time_left: str | None = None  # module:function that asks the scheduler for the seconds left
    away: str | None = None  # module:function that tells whether the scheduler, needed to start agents, is away
    kill_wait: str | None = None  # module:function that tells the seconds between SIGTERM and SIGKILL
    for_good: str | None = None  # module:function that keeps the scheduler from restarting the job for its exit code
    again: tuple[str, int] | None = None  # variable with the path of a file, and the exit code if the file exists
    threads: int | None = None  # OMP_NUM_THREADS, unless it is set
    environment_file: str | None = None
    secrets_file: str | None = None  # for an array: the folder of the elements' files
    seen: str | None = None  # file that tells later submissions that nodes can write to runs_dir
    snapshot: str | None = None
    repository: str | None = None
    path: tuple[str, ...] = ()  # folders of the snapshot for PYTHONPATH
    code_root: str | None = None  # the launcher's own folder for PYTHONPATH
    race: str | None = None  # token of the race (cluster.race) in which the job takes part
    won: tuple[str, ...] = ()  # the command that ends the other jobs of the race

    def python_path(self, given: str) -> str:
        """Returns PYTHONPATH for the ranks, with folders of the snapshot for those of the repository."""
        folders = given.split(":") if given else []
        if self.snapshot is not None and self.repository is not None:
            path, code = list(self.path), f"{os.path.realpath(self.snapshot)}/"
            for folder in folders:
                real = os.path.realpath(folder or ".")
                within = f"{real}/"
                ours = within.startswith(code) or "/site-packages/" in within
                if not ours and within.startswith(f"{self.repository}/"):
                    folder = self.snapshot + real.removeprefix(self.repository)
                if folder not in path:
                    path.append(folder)
            folders = path
        if self.code_root is not None and self.code_root not in folders:
            folders = [self.code_root, *folders]
        return ":".join(folders)

    def of_element(self, name: str) -> dict[str, Any]:
        """Returns the fields of one element of an array that differ from the array's."""
        run_dir = f"{self.run_dir}/{name}"
        return {
            "run_dir": run_dir,
            "checkpoints": self.checkpoints.replace(self.run_dir, run_dir, 1)
            if self.checkpoints.startswith(f"{self.run_dir}/") else self.checkpoints,
            "secrets_file": self.secrets_file and f"{self.secrets_file}/{name}.sh",
        }  # fmt: skip


class FunctionFile(Struct):
    """A job of submitit functions, or an array of them; see `launcher.schedulers.functions`."""

    folder: str  # submitit's, up to the first part that differs between jobs
    payload: str  # path of the payloads, without their ending _INDEX.pkl
    index: int  # that of a plain job
    start: tuple[str, ...]  # starts another command on all nodes; empty: there is a single task
    task: tuple[str, ...]  # the command of each task
    variables: Mapping[str, str]  # for the tasks
    signals: tuple[str, ...]  # those by which the scheduler stops the job; the tasks get them too
    seconds: int  # from the job's start until functions are checkpointed
    workdir: str
    environment: str  # file with the variables of the submitting shell
    teardown: tuple[str, ...]  # shell lines after the tasks
    code_root: str | None = None  # the launcher's own folder for PYTHONPATH


# -- The file with a job's environment, where the scheduler passes none: shell `export` lines


# Variables that the scheduler sets on each node for a job or task.
OF_NODE = re.compile(r"HOSTNAME|CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES")
OF_BASH = re.compile(r"_|BASHOPTS|SHELLOPTS|UID|EUID|PPID")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def exports(environ: Mapping[str, str]) -> str:
    """Returns bash lines that export these variables, those of OF_NODE only where the node has none."""
    lines = []
    for name, value in environ.items():
        if VARIABLE.fullmatch(name) and not OF_BASH.fullmatch(name):
            unless_set = f"[ -v {name} ] || " if OF_NODE.fullmatch(name) else ""
            lines.append(f"{unless_set}export {name}={shlex.quote(value)}\n")
    return "".join(lines)


def parse_exports(text: str) -> dict[str, str]:
    """Returns the variables of bash lines that `exports` has made (those of OF_NODE too) and of comment lines."""
    words = iter(shlex.split(text, comments=True))
    return dict(next(words).split("=", 1) for word in words if word == "export")


# -- How much of an attempt's wall time is left, although the clocks of nodes may differ
#
# The job computes the time left when it starts (`launcher.job.driver`), and sets:
#
#     LAUNCHER_DEADLINE         the deadline, in seconds since the epoch, by the clock of the script's machine
#     LAUNCHER_TIME_LEFT        seconds left when the script started
#     LAUNCHER_DEADLINE_UPTIME  boot id of the script's machine, and its uptime in seconds at the deadline
#
# | this process | computes the time left from | the result is |
# |---|---|---|
# | runs on the machine of the job script | the uptime, which does not depend on the clock's setting | sure |
# | runs on another machine | its own clock; at most LAUNCHER_TIME_LEFT | not sure |
# | has LAUNCHER_DEADLINE only (a function of submitit) | its own clock | sure: there is no better source |
#
# A process that is not sure does not end the attempt while other processes are sure, because a node whose clock is
# minutes ahead would end every attempt at once. If no process is sure (the script's node was left out), any may.


BEGUN = "LAUNCHER_BEGUN"  # variable with the uptime at which the job script began
BOOT_ID, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")


class TimeLeft(Struct):
    """Seconds until the scheduler ends the attempt, and whether they are sure by the table above."""

    seconds: float
    sure: bool


def judge_time(environ: Mapping[str, str], now: float, machine: tuple[str, float] | None) -> TimeLeft | None:
    """Returns the time left of this process's attempt, by the table above; None: it has no deadline.

    machine: boot id and uptime (in seconds) of this machine; None: unknown. `now` is in seconds since the epoch.
    """
    deadline = environ.get("LAUNCHER_DEADLINE")
    if not deadline:
        return None
    by_clock = float(deadline) - now
    boot_id, _, uptime = environ.get("LAUNCHER_DEADLINE_UPTIME", "").partition(" ")
    if not uptime:
        return TimeLeft(by_clock, sure=True)
    if machine is not None and machine[0] == boot_id:
        return TimeLeft(float(uptime) - machine[1], sure=True)
    return TimeLeft(min(by_clock, float(environ.get("LAUNCHER_TIME_LEFT") or "inf")), sure=False)


def time_left(environ: Mapping[str, str]) -> TimeLeft | None:
    """Returns the time left of the attempt to which this process belongs; None: the attempt has no deadline."""
    machine: tuple[str, float] | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        machine = BOOT_ID.read_text().strip(), uptime()
    return judge_time(environ, time.time(), machine)


def ends_in(seconds: int) -> None:
    """Sets the variables of this process, for those that it starts: the scheduler ends the attempt in `seconds`."""
    os.environ.update(LAUNCHER_DEADLINE=str(int(time.time()) + seconds), LAUNCHER_TIME_LEFT=str(seconds))
    with contextlib.suppress(OSError, ValueError, IndexError):
        os.environ["LAUNCHER_DEADLINE_UPTIME"] = f"{BOOT_ID.read_text().strip()} {int(uptime()) + seconds}"


def uptime() -> float:
    return float(UPTIME.read_text().split()[0])
