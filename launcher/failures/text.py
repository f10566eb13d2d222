"""Makes one line of text for people of each failure or stop code. No other module does. Pure."""

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
    """Returns the name of a signal (`SIGKILL`), or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def given_up(cause: str, first: str, tried: int, max_restarts: int) -> str:
    """Returns the cause of an attempt that fails after restarts in place.

    Args:
        cause: cause of the last failure.
        first: cause of the first restart.
        tried: number of restarts in a row without progress.
        max_restarts: launch.max_restarts.
    """
    if not tried:
        return cause
    restarts = "1 restart" if tried == 1 else f"{tried} restarts"
    last = "" if first == cause else f"; the last time {cause}"
    return f"{first}; {restarts} got no further (launch.max_restarts={max_restarts}){last}"


def node_lost(hosts: str) -> str:
    """Returns the cause when the agents of these hosts closed their connections without a reason."""
    return f"{hosts} ended without a word (killed, or lost)"


def node_silent(hosts: str, heartbeat: float) -> str:
    return f"{hosts} has not been heard of for {heartbeat:g} s (launch.heartbeat)"


def leader_lost(host: str, leader: str) -> str:
    return f"{host} lost contact with {leader}, which runs rank 0"


def asked_to_stop(host: str, name: str, when: str = "") -> str:
    """Returns the cause when an agent got a signal.

    Args:
        host: host of the agent.
        name: name of the signal.
        when: what the agent was doing (`before its ranks started`).
    """
    return f"{host} was told to stop ({name})" + (f" {when}" if when else "")


def not_joined(ranks: str, hosts: str, timeout: float) -> str:
    return f"rank {ranks} on {hosts} did not join the others within {timeout:g} s: does an import hang?"


def left(ranks: Collection[int], host: str) -> str:
    """Returns the cause when ranks of a host exited with code 75; without ranks: they did not exit in time."""
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
    """Returns the stop reason that ranks have agreed on, as text.

    Args:
        reason: one of the keys of `_STOPS`.
        rank, host: the rank that noticed it.
    """
    return _STOPS[reason].format(rank=f"rank {rank} on {host}")


_ENDINGS = {
    NextReason.TIME_LIMIT: "the time of its allocation is nearly up",
    NextReason.STOP_REQUESTED: "its job was told to stop",
    NextReason.SCHEDULER_ENDS: "{scheduler} ends its job ({state})",
}


def of_ending(reason: NextReason, scheduler: str = "", state: str = "") -> str:
    """Returns why a scheduler ends a job, as text."""
    return _ENDINGS[reason].format(scheduler=scheduler, state=state)


def of_rank(failure: Failure) -> str:
    """Returns how a rank failed, as text."""
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


# -- events other than failures


def of_place(place: Place) -> str:
    """Returns the name of an agent in messages: `node2 (node 1)`, or `rank 3 on node2` with launch=tasks."""
    if place.task is not None:
        return f"rank {place.task} on {place.host}"
    return f"{place.host} (node {place.node})"


def of_resized(event: Resized) -> str:
    """Returns a line about the nodes that a new round has lost or gained."""
    changes = {"without": event.without, "with": event.back}
    parts = [f"{preposition} {', '.join(map(of_place, places))}" for preposition, places in changes.items() if places]
    return f"round {event.round} continues {' and '.join(parts)}: {event.members} of {event.size}"


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
    """Returns the name of a set-up line in messages; see `launcher.runs.events.SetupFailed`."""
    return _SETUP[part].format(number=number, name=name, cluster=cluster)
