"""Failures and stops in words, for people: one line each. Nothing else makes text of their codes. Pure."""

from __future__ import annotations

import errno
import signal
from collections.abc import Collection
from typing import TYPE_CHECKING

from launcher.failures.codes import FaultCode, NextReason, SetupPart, StopReason

if TYPE_CHECKING:
    from launcher.agent.failures import Failure
    from launcher.runs.events import PassedOver, Place, Resized, SaveFailed


def signal_name(number: int) -> str:
    """`SIGKILL`; `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def given_up(cause: str, first: str, tried: int, max_restarts: int) -> str:
    """The cause of an attempt that restarts in place did not help.

    Args:
        cause: of its end.
        first: of the first of the restarts.
        tried: restarts in a row that got no further.
        max_restarts: how many there may be.
    """
    if not tried:
        return cause
    restarts = "1 restart" if tried == 1 else f"{tried} restarts"
    last = "" if first == cause else f"; the last time {cause}"
    return f"{first}; {restarts} got no further (launch.max_restarts={max_restarts}){last}"


def node_lost(hosts: str) -> str:
    """The agents of these hosts are gone."""
    return f"{hosts} ended without a word (killed, or lost)"


def node_silent(hosts: str, heartbeat: float) -> str:
    return f"{hosts} has not been heard of for {heartbeat:g} s (launch.heartbeat)"


def leader_lost(host: str, leader: str) -> str:
    return f"{host} lost contact with {leader}, which runs rank 0"


def asked_to_stop(host: str, name: str, when: str = "") -> str:
    """An agent was sent a signal.

    Args:
        host: of the agent.
        name: of the signal.
        when: what this kept it from.
    """
    return f"{host} was told to stop ({name})" + (f" {when}" if when else "")


def not_joined(ranks: str, hosts: str, timeout: float) -> str:
    return f"rank {ranks} on {hosts} did not join the others within {timeout:g} s: does an import hang?"


def left(ranks: Collection[int], host: str) -> str:
    """Ranks of this host left with exit code 75; none of them: the others did not in time."""
    if not ranks:
        return f"the ranks on {host} did not leave in time"
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, sorted(ranks)))} on {host} left with exit code 75"


_STOPS = {
    StopReason.TIME_LIMIT: "its time is nearly up",
    StopReason.WARNING_SIGNAL: "the scheduler's warning signal ({rank})",
    StopReason.STOP_FILE: "its stop file",
    StopReason.SIGNAL: "told to stop ({rank})",
}


def of_stop(reason: StopReason, rank: int = 0, host: str = "") -> str:
    """Why ranks stop, as they agree on it.

    Args:
        reason: one of those that ranks know.
        rank, host: who has seen it.
    """
    return _STOPS[reason].format(rank=f"rank {rank} on {host}")


_ENDINGS = {
    NextReason.TIME_LIMIT: "the time of its allocation is nearly up",
    NextReason.STOP_REQUESTED: "its job was told to stop",
    NextReason.SCHEDULER_ENDS: "{scheduler} ends its job ({state})",
}


def of_ending(reason: NextReason, scheduler: str = "", state: str = "") -> str:
    """Why a scheduler ends a job."""
    return _ENDINGS[reason].format(scheduler=scheduler, state=state)


def of_rank(failure: Failure) -> str:
    """How a rank failed."""
    who = f"rank {failure.rank} on {failure.host}"
    if failure.code is FaultCode.NOT_STARTED:
        return f"{who} cannot be started: {_why_not_started(failure)}"
    if failure.code is FaultCode.STILL_THERE:
        return (
            f"on {failure.host} ranks of the round before were killed and are still there: {failure.words}; what they "
            "hold (GPUs, memory, ports) is not free. Look for a file server or a driver that hangs on this node"
        )
    if failure.code is FaultCode.RETURNED_EARLY:
        return f"{who} exited with code 0 before its work was done"
    if failure.code is FaultCode.LEFT:
        return f"{who} left with exit code {failure.exit_code}"
    if failure.code is FaultCode.LOST_PEER and failure.error is not None:
        return f"{who} lost another rank ({failure.error.line})"
    return f"{who}: {failure.error.line if failure.error is not None else _how_it_ended(failure)}"


def _how_it_ended(failure: Failure) -> str:
    if failure.signal is None:
        return f"exited with code {failure.exit_code}"
    return f"killed by {signal_name(failure.signal)}"


def _why_not_started(failure: Failure) -> str:
    now = "unlimited" if failure.limit < 0 else str(failure.limit)
    fix = {
        errno.EAGAIN: f"no more processes are allowed here: raise `ulimit -u` (now {now}) or the job's pids limit, "
                      "or have fewer ranks (procs_per_node) and data loader workers",
        errno.ENOMEM: "there is no memory for one more process: ask for more, or have fewer ranks (procs_per_node)",
        errno.EMFILE: f"the agent may open no more files: raise `ulimit -n` (now {now}), for instance in cluster.setup",
        errno.ENFILE: "the node has no more files to open (sysctl fs.file-max): other processes on it hold them",
    }.get(failure.number)  # fmt: skip
    return f"{failure.words}; {fix}" if fix else failure.words


# -- what is no fault


def of_place(place: Place) -> str:
    """What to call an agent."""
    if place.task is not None:
        return f"rank {place.task} on {place.host}"
    return f"{place.host} (node {place.node})"


def of_resized(event: Resized) -> str:
    """With whom a round goes on."""
    changes = {"without": event.without, "with": event.back}
    words = [f"{verb} {', '.join(map(of_place, places))}" for verb, places in changes.items() if places]
    return f"round {event.round} goes on {' and '.join(words)}: {event.members} of {event.size}"


def of_save_failed(event: SaveFailed) -> str:
    return f"the checkpoint of step {event.step} was not saved: {event.error}"


def of_passed_over(event: PassedOver) -> str:
    return f"a checkpoint is passed over: {event.checkpoint}: {'; '.join(event.problems)}"


_SETUP = {
    SetupPart.CLUSTER: "set-up line {number} of {cluster}",
    SetupPart.ENV: "line {number} of env.setup",
    SetupPart.MODULE: "finding the command `module` (env.modules)",
    SetupPart.MODULES: "module load {name} (env.modules)",
    SetupPart.ACTIVATE: "activating {name} (env.activate)",
    SetupPart.FOLDER: "making {name}, to be seen in env.container",
    SetupPart.UNKNOWN: "a set-up line",
}


def of_setup_line(part: SetupPart, number: int = 0, name: str = "", cluster: str = "the cluster's profile") -> str:
    """What a set-up line is; see `launcher.runs.events.SetupFailed`."""
    return _SETUP[part].format(number=number, name=name, cluster=cluster)
