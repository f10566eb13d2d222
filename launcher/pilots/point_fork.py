"""Runs a point in a slot of a node: a fork of the slot manager, which is the point's agent."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from launcher import errors, processes
from launcher.agent import attempt as agent
from launcher.agent.policy import AttemptFailed
from launcher.agent.workers import take_streams
from launcher.binding import hardware, masks
from launcher.binding.masks import DeviceError, RankDevices
from launcher.errors import NO_RETRY, LauncherError, UnavailableError
from launcher.failures import messages
from launcher.failures.codes import FaultCode
from launcher.files import safe_io
from launcher.formatting import log_line, plural
from launcher.runs import event_files
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Fault, Started
from launcher.schedulers import topology
from launcher.worker import shared_with_agent
from launcher.worker.devices import OWN_CORES

# -- Divides the CPUs and GPUs of a node among its slots. Pure, except that `slots_of_node` reads this node's hardware


class TooFewGpus(LauncherError):
    """The scheduler makes fewer GPUs visible to the pilot than it asked for. A retry would fail, too."""

    exit_code = NO_RETRY


@dataclass(frozen=True)
class Slot:
    """A share of a node in which one point runs at a time."""

    number: int  # index of the slot on its node, from 0
    cpus: tuple[int, ...] = ()  # ids of the CPUs that the point may use; empty: all CPUs of the pilot on this node
    variables: Mapping[str, str] = field(default_factory=dict)  # limit the visible GPUs: CUDA_VISIBLE_DEVICES, ...


def gpus_of(slot: int, per_slot: int, there: int) -> tuple[int, ...]:
    """Returns the indices of the pilot's GPUs on this node that a slot gets; slots share if there are too few."""
    return tuple(dict.fromkeys((slot * per_slot + place) % there for place in range(per_slot))) if there else ()


def mask(environ: Mapping[str, str], places: Sequence[int], name: str) -> dict[str, str]:
    """Returns the variable `name` with only these of the visible GPUs; raises TooFewGpus."""
    shown = environ.get(name)
    if shown is None:
        return {name: ",".join(map(str, places))}
    entries = masks.entries_of(shown)
    if len(entries) <= max(places):
        raise TooFewGpus(
            f"{name}={shown} shows {plural(len(entries), 'GPU')} on {socket.gethostname()}, and the pilot asked for "
            "more (sweep.gpus, else sweep.slots x gpus_per_node): ask for fewer, or see `launcher doctor`"
        )
    return {name: ",".join(entries[place] for place in places)}


def slots_of_node(count: int, environ: Mapping[str, str], *, gpus_per_point: int, gpus: int, cpus: int) -> list[Slot]:
    """Returns the slots of this node, each with its CPUs and GPUs; TooFewGpus: fewer are visible than asked for."""
    node, allowed = hardware.read(environ=environ), os.sched_getaffinity(0)
    places = [gpus_of(slot, gpus_per_point, gpus) for slot in range(count)]
    ranks = [RankDevices()] * count
    name = masks.mask_of(masks.MASKS[node.gpus[0].vendor if node.gpus else "nvidia"], environ)
    if gpus:
        with contextlib.suppress(DeviceError):  # the CPUs are divided regardless of where the GPUs are
            shown = masks.visible_gpus(node, environ)
            ranks = [RankDevices(shown[each[0]] if each and each[0] < len(shown) else None) for each in places]
    found = masks.bind(node, allowed, ranks, masks.BindRequest(masks.AUTO), cpus_per_rank=cpus)
    return [
        Slot(
            number, found.ranks[number].cpus if found.bound else (),
            mask(environ, places[number], name) if gpus_per_point and gpus else {},
        )
        for number in range(count)
    ]  # fmt: skip


# -- The point's process: it does the work of a job script, and is the point's agent
#
# A point is a run like any other: its attempts, events, output and checkpoints are in its own directory.


# Variables that an agent sets for its ranks. A slot manager is a rank, and a point's agent must not inherit them.
OF_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "LAUNCHER_ROUND", "LAUNCHER_CHECKPOINT_DIR",
    OWN_CORES,
)  # fmt: skip
LEASE = "lease"


def environment(environ: Mapping[str, str], attempt: Attempt, slot: Slot, host: str) -> dict[str, str]:
    run = attempt.run
    kept = {name: value for name, value in environ.items() if name not in OF_RANKS}
    return {
        **kept, **slot.variables, "LAUNCHER_RUN_DIR": str(run.path), "LAUNCHER_ATTEMPT": str(attempt.number),
        "LAUNCHER_LEASE": str(run.path / LEASE), "LAUNCHER_TASK": "0", "LAUNCHER_NODE": "0", "LAUNCHER_TASKS": "1",
        **topology.variable([host]),
        "LAUNCHER_JOB": f"{environ.get('LAUNCHER_JOB_ID', '')}-{run.id}-{attempt.number}",
    }  # fmt: skip


def begin(run: Run) -> Attempt:
    """Creates the directories of a point's next attempt; raises OSError, UnavailableError."""
    number = max((each.number for each in run.attempts()), default=-1) + 1
    while True:
        attempt = Attempt(run, number)
        try:
            attempt.path.mkdir(mode=0o700)
            break
        except FileExistsError:  # a listing of an NFS folder may be a minute old
            number += 1
    (attempt.path / "events").mkdir(mode=0o700)
    return attempt


def start(attempt: Attempt, slot: Slot, host: str) -> int:
    """Forks a process that runs a point's attempt, and returns its process id; raises OSError."""
    manager = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    with processes.garbage_kept():  # in the child, it lasts until the process ends
        if (pid := os.fork()) == 0:
            _run(attempt, slot, host, manager)
    return pid


def close(attempt: Attempt, number: int, host: str, *, asked: bool) -> None:
    """Writes the Ended event of an attempt with a killed process, unless the process has written it itself.

    asked: whether the process was asked to stop before; if not, the signal is recorded as a fault, too.
    """
    if any(event["event"] == Ended.event for event in attempt.written_by("script")):
        return
    if not asked:
        name = messages.signal_name(number)
        event_files.append(attempt.events_file("script"), Fault(code=FaultCode.SIGNALLED, host=host, signal=name))
    event_files.append(attempt.events_file("script"), Ended(code=128 + number))


def _run(attempt: Attempt, slot: Slot, host: str, manager: int) -> NoReturn:
    code = errors.FAILED
    try:
        processes.die_with_parent(manager)
        signal.set_wakeup_fd(-1)
        shared_with_agent.begin_process()
        path = attempt.run.path / f"output-{os.environ.get('LAUNCHER_JOB_ID', '')}.log"
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        take_streams(output, output)
        os.close(output)
        code = _recorded(attempt, slot, host)
    except BaseException:
        traceback.print_exc()
    finally:
        shared_with_agent.end_process(code)
    raise AssertionError("it has ended")


def _recorded(attempt: Attempt, slot: Slot, host: str) -> int:
    run, job = attempt.run, os.environ.get("LAUNCHER_JOB_ID", "")
    safe_io.write(run.path / LEASE, f"{job} {attempt.number} {host}\n", sync=False)
    event_files.append(attempt.events_file("script"), Started(job=job, host=host, output=os.fstat(1).st_size))
    code = errors.FAILED
    try:
        code = _agent(attempt, slot, host)
    except UnavailableError as error:
        log_line(str(error))
        code = errors.RESUME
    finally:
        event_files.append(attempt.events_file("script"), Ended(code=code))
    return code


def _agent(attempt: Attempt, slot: Slot, host: str) -> int:
    variables = environment(os.environ, attempt, slot, host)
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
