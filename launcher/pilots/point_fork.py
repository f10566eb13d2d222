"""Runs a point on a node in a fork of its slot manager: what a job's script does for a run, and the run's agent.

A point is a run like any other: its attempts, events, output and checkpoints are in its own directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from launcher import errors
from launcher.agent import attempt as agent
from launcher.agent.forks import garbage_kept
from launcher.agent.outcome import AttemptFailed
from launcher.errors import UnavailableError
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.files import run_files
from launcher.log_line import log_line
from launcher.pilots.group import Group, printed_on
from launcher.pilots.slots import Slot
from launcher.processes import orphans
from launcher.runs import event_file
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Fault, Started
from launcher.worker import rank_report

# Variables that an agent sets for a rank; a point's agent is none.
OF_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "LAUNCHER_ROUND", "LAUNCHER_CHECKPOINT_DIR",
)  # fmt: skip
LEASE = "lease"


def environment(environ: Mapping[str, str], attempt: Attempt, slot: Slot, group: Group) -> dict[str, str]:
    """The variables of a point's agent. Pure.

    Args:
        environ: of the slot manager.
        attempt: of the point.
        slot: where it runs on this node.
        group: the nodes that it runs on.
    """
    run = attempt.run
    kept = {name: value for name, value in environ.items() if name not in OF_RANKS}
    return {
        **kept, **slot.variables, "LAUNCHER_RUN_DIR": str(run.path), "LAUNCHER_ATTEMPT": str(attempt.number),
        "LAUNCHER_LEASE": str(run.path / LEASE), "LAUNCHER_TASK": str(group.place), "LAUNCHER_NODE": str(group.place),
        "LAUNCHER_TASKS": str(len(group.hosts)), "LAUNCHER_HOSTS": ",".join(group.hosts),
        "LAUNCHER_JOB": f"{environ.get('LAUNCHER_JOB_ID', '')}-{run.id}-{attempt.number}",
    }  # fmt: skip


def begin(run: Run, group: Group) -> Attempt:
    """The next attempt of a point, with its folders.

    Raises:
        OSError, UnavailableError: they cannot be made.
    """
    number = max((each.number for each in run.attempts()), default=-1) + 1
    while True:
        attempt = Attempt(run, number)
        try:
            attempt.path.mkdir(mode=0o700)
            break
        except FileExistsError:  # a listing of an NFS folder may be a minute old
            number += 1
    (attempt.path / "events").mkdir(mode=0o700)
    if group.followers:
        (attempt.path / "tasks").mkdir(mode=0o700)
    return attempt


def start(attempt: Attempt, slot: Slot, group: Group) -> int:
    """Forks a process that runs this node's part of a point's attempt. Returns its process id.

    Args:
        attempt: of the point.
        slot: where it runs on this node.
        group: the nodes of the point; the first one also writes the lease, Started and Ended.

    Raises:
        OSError: the fork failed, for example at the process limit.
    """
    manager = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with garbage_kept():  # for as long as the fork lives
        if (pid := os.fork()) == 0:
            _run(attempt, slot, group, manager)
    return pid


def close(attempt: Attempt, number: int, host: str, *, asked: bool) -> None:
    """Writes how an attempt ended whose process was killed before it could.

    Args:
        attempt: of the point.
        number: of the signal.
        host: of this node, as the scheduler names it.
        asked: whether it was asked to end before; otherwise the signal is its failure.

    Raises:
        OSError: it cannot be written.
    """
    if _has_ended(attempt):
        return
    if not asked:
        name = text.signal_name(number)
        event_file.append(attempt.events_file("script"), Fault(code=FaultCode.SIGNALLED, host=host, signal=name))
    event_file.append(attempt.events_file("script"), Ended(code=128 + number))


def _has_ended(attempt: Attempt) -> bool:
    return any(event["event"] == Ended.event for event in event_file.read(attempt.events_file("script")))


def output_of(run: Run) -> Path:
    """The file with the output of a point's attempts in this job."""
    return run.path / f"output-{os.environ.get('LAUNCHER_JOB_ID', '')}.log"


def _run(attempt: Attempt, slot: Slot, group: Group, manager: int) -> NoReturn:
    """The forked process."""
    code = errors.FAILED
    try:
        orphans.die_with_parent(manager)
        signal.set_wakeup_fd(-1)
        rank_report.begin_process()
        _take_output(str(printed_on(attempt, group.place) if group.place else output_of(attempt.run)))
        code = _part(attempt, slot, group) if group.place else _first_part(attempt, slot, group)
    except UnavailableError as error:
        log_line(str(error))
        code = errors.RESUME
    except BaseException:
        traceback.print_exc()
    finally:
        rank_report.end_process(code)
    raise AssertionError("it has ended")


def _first_part(attempt: Attempt, slot: Slot, group: Group) -> int:
    """The attempt, on the first node; its exit code."""
    run, job = attempt.run, os.environ.get("LAUNCHER_JOB_ID", "")
    run_files.write(run.path / LEASE, f"{job} {attempt.number} {group.host}\n", sync=False)
    event_file.append(attempt.events_file("script"), Started(job=job, host=group.host, output=os.fstat(1).st_size))
    code = _part(attempt, slot, group)
    event_file.append(attempt.events_file("script"), Ended(code=code))
    return code


def _part(attempt: Attempt, slot: Slot, group: Group) -> int:
    """This node's part of the attempt; its exit code."""
    variables = environment(os.environ, attempt, slot, group)
    os.environ.clear()
    os.environ.update(variables)
    if slot.cpus:
        with contextlib.suppress(OSError):  # the job has lost them in the meantime: the point runs unbound
            os.sched_setaffinity(0, slot.cpus)
    try:
        attempt.run.require_private()
        agent.run(str(attempt.run.path))
    except AttemptFailed as failure:
        if failure.ours:
            log_line(str(failure))
        if failure.decides:
            attempt.write_exit_code(failure.exit_code)
        return attempt.exit_code() or failure.exit_code
    return errors.DONE


def _take_output(path: str) -> None:
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
