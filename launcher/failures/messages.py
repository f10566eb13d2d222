"""The words for an event without a message of its writer: a fault by its code, a stop, what follows it, and others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.failures.codes import FaultCode, NextReason, PreflightThen, StopReason
from launcher.formatting import name_ranks, plural

if TYPE_CHECKING:
    from launcher.runs import events


MOST_NAMES = 10  # at most so many agents are named in a text
STOP_FILE = "asked to stop by its file `stop`"


def signal_name(number: int) -> str:
    """Returns the name of a signal (`SIGKILL`), or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_of_process(code: int) -> str:
    """Returns how a process ended, for `Popen.returncode`: `was killed by SIGKILL`, `ended with exit code 1`."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def of_unused_gpus(event: events.GpusUnused) -> str:
    ranks = f"{name_ranks(event.ranks)} on {event.host}"
    if event.opened:
        return f"{ranks}: a GPU is used now"
    return (
        f"{ranks}: no GPU was used in {event.seconds:g} s, though the run asked for {plural(event.gpus, 'GPU')} a node "
        "(gpus_per_node): does the code put its model and its data on the device?"
    )


def of_preflight(result: events.Preflighted) -> list[str]:
    """Returns a preflight's result as lines: `preflight: 4 nodes fine in 1.2 s`, bad nodes, warnings."""
    fine = f"preflight: {plural(result.nodes, 'node')} fine in {result.seconds:.1f} s"
    lines = [fine] if result.then is PreflightThen.GO else []
    what = " is left out" if result.then is PreflightThen.WITHOUT else ""
    lines += [f"preflight: {each.name}{what}: {each.found.text}" for each in result.bad]
    return lines + [f"preflight: warning: {each.name}: {each.found.text}" for each in result.warnings]


# -- faults


def of_fault(fault: events.Fault) -> str:
    return fault.message or _FAULTS.get(fault.code, _error)(fault)


def _error(fault: events.Fault) -> str:
    who = _rank(fault) if fault.rank is not None else fault.host
    if fault.reading and fault.reading not in (fault.error or ""):
        who += f", loading {fault.reading}"
    what = fault.code.value.replace("_", " ") if fault.error is None else fault.error
    return f"{who}: {what}" if who else what


def _rank(fault: events.Fault) -> str:
    return rank_on(fault.rank, fault.host) if fault.rank is not None else f"a rank on {fault.host}"


def rank_on(rank: int | None, host: str) -> str:
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def node_of(host: str, node: int | None) -> str:
    return host if node is None else f"{host} (node {node})"


def agents(accused: Sequence[events.Accused]) -> str:
    return first_of([
        node_of(each.host, each.node) if each.rank is None else rank_on(each.rank, each.host) for each in accused
    ])  # fmt: skip


def first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def _hosts(fault: events.Fault) -> list[str]:
    return [each.host for each in fault.accused] or [fault.host]


def _seconds(fault: events.Fault, preposition: str) -> str:
    return "" if fault.seconds is None else f" {preposition} {fault.seconds:g} s"


def _ended(fault: events.Fault) -> str:
    who = _rank(fault) if fault.rank is not None else f"the task on {fault.host}"
    how = "was killed" if fault.exit_code is None else f"exited with code {fault.exit_code}"
    how = f"killed by {fault.signal}" if fault.signal is not None else how
    return f"{who}: {how}" + (f": {fault.error}" if fault.error else "")


def node_ended(hosts: Sequence[str], how: str = "(killed, or lost)", *, then: str = "") -> str:
    return f"{first_of(hosts)} exited without an error report {how}" + (f"; then {then}" if then else "")


def too_few(arrived: int, expected: int) -> str:
    return f"too few agents are left: {arrived} of the {expected} that are needed"


def _not_joined(fault: events.Fault) -> str:
    hosts = first_of(list(dict.fromkeys(each.host for each in fault.accused if each.host)))
    who = name_ranks(each.rank for each in fault.accused if each.rank is not None) + (f" on {hosts}" if hosts else "")
    return f"{who} did not join the others{_seconds(fault, 'within')}: does an import hang?"


def _agent_error(fault: events.Fault) -> str:
    return f"the agent on {fault.host} cannot continue: {fault.error}"


def _leader_lost(fault: events.Fault) -> str:
    if not fault.accused:
        return _agent_error(fault)
    lost = f"the connection to {agents(fault.accused)}, which leads, is lost"
    return f"{lost}: {fault.error}" if fault.error else lost


def of_request(host: str, name: str | None) -> str:
    """Returns the text about a stop request: `node1 was asked to stop by SIGTERM`."""
    return f"{host} was asked to stop by {name}" if name else f"{host} was asked to stop"


_FAULTS: dict[FaultCode, Callable[[events.Fault], str]] = {
    FaultCode.LOST_PEER: lambda fault: f"{_rank(fault)} lost another rank ({fault.error})",
    FaultCode.SIGNALLED: _ended,
    FaultCode.EXITED: _ended,
    FaultCode.RETURNED_EARLY: lambda fault: f"{_rank(fault)} exited with code 0 before its work was done",
    FaultCode.LEFT: _ended,
    FaultCode.NO_RETRY: lambda fault: _error(fault) if fault.error else _ended(fault),
    FaultCode.STILL_THERE: lambda fault: (
        f"on {fault.host} ranks of the round before still exist after SIGKILL: {fault.error}; what they hold (GPUs, "
        "memory, ports) is not free. Look for a file server or a driver that hangs on this node"
    ),
    FaultCode.HANG: lambda fault: (
        f"{agents(fault.accused) or _rank(fault)} hangs{_seconds(fault, 'for')}"
        + (f" ({fault.limit})" if fault.limit else "")
    ),
    FaultCode.NOT_JOINED: _not_joined,
    FaultCode.NODE_ENDED: lambda fault: node_ended(_hosts(fault)),
    FaultCode.NODE_SILENT: lambda fault: (
        f"no heartbeat from {first_of(_hosts(fault))}{_seconds(fault, 'for')} (launch.heartbeat)"
    ),
    FaultCode.LEADER_LOST: _leader_lost,
    FaultCode.TASK_NOT_STARTED: lambda fault: f"the task on {fault.host} could not be started: {fault.error}",
    FaultCode.TASK_UNKNOWN: lambda fault: f"it is not known how the task on {fault.host} ended: {fault.error}",
    FaultCode.STOPPED_EARLY: lambda fault: of_request(fault.host, fault.signal),
    FaultCode.NOT_REACHED: lambda fault: (
        f"{fault.host} could not reach {agents(fault.accused) or 'its leader'}{_seconds(fault, 'within')}: "
        f"{fault.error}"
    ),
    FaultCode.LATE: lambda fault: f"the others have begun without {node_of(fault.host, fault.node)}",
    FaultCode.NOT_A_MEMBER: lambda fault: (
        f"agent {fault.node} does not belong to this attempt: was it started by mistake, or twice?"
    ),
    FaultCode.CONDITION_FAILED: lambda fault: f"it was not started: {fault.error}",
    FaultCode.AGENT: _agent_error,
}  # fmt: skip


# -- stops


def of_stop(stop: events.Stop) -> str:
    other = stop.error or stop.reason.value.replace("_", " ")
    cause = _STOPS[stop.reason](stop) if stop.reason in _STOPS else other
    if stop.killed_on is None:
        return cause
    return f"{cause}; ranks on {stop.killed_on} did not exit within {stop.grace or 0.0:g} s and were killed"


_STOPS: dict[StopReason, Callable[[events.Stop], str]] = {
    StopReason.TIME_LIMIT: lambda _: "its time is nearly up",
    StopReason.WARNING_SIGNAL: lambda stop: f"the scheduler's warning signal ({rank_on(stop.rank, stop.host)})",
    StopReason.STOP_FILE: lambda _: STOP_FILE,
    StopReason.CANCELLED: lambda _: "it was cancelled before it started",
    StopReason.SIGNAL: lambda stop: (
        of_request(stop.host, stop.signal) if stop.rank is None else f"asked to stop ({rank_on(stop.rank, stop.host)})"
    ),
    StopReason.EXIT_75: lambda stop: f"{name_ranks(stop.ranks)} on {stop.host} exited with code 75",
    StopReason.NOT_IN_TIME: lambda stop: f"the ranks on {stop.host} did not exit in time",
    StopReason.KILLED: lambda stop: f"all agents were killed, or could not be started (exit code {stop.exit_code})",
    StopReason.UNREADABLE: lambda stop: stop.error or "a file that it needs cannot be read",
    StopReason.EXIT_UNREAD: lambda _: "no exit code of its agents can be read",
}


# -- what follows an attempt that stopped early


def of_next(event: events.Continues | events.Stays) -> str:
    table = _CONTINUES if event.event == "continues" else _STAYS
    return table.get(event.reason, lambda _: event.reason.value.replace("_", " "))(event)


def _no_progress(event: events.Stays) -> str:
    where = f"got no further than step {event.step}"
    time = "time" if event.limit is None else f"time={event.limit}s"
    question = f"is {time} too short for a start, a step and a save?"
    if event.saves_in is not None:
        where = f"reported no step and saved nothing new ({event.saves_in})"
        question = f"is {time} too short for a start and a save, or does it save elsewhere (workload.checkpoint)?"
    return f"two attempts in a row {where}: {question}"


_CONTINUES: dict[NextReason, Callable[..., str]] = {
    NextReason.RESUMABLE: lambda _: "it can be resumed",
    NextReason.CHAIN: lambda _: "the next job of its chain waits for this one to end",
    NextReason.REQUEUED: lambda _: "its job was requeued",
    NextReason.RESUBMITTED: lambda event: f"job {event.job} waits for this one to end",
}
_STAYS: dict[NextReason, Callable[..., str]] = {
    NextReason.STOP_FILE: lambda _: STOP_FILE,
    NextReason.CANCELLED: lambda _: "it was cancelled",
    NextReason.RESUME_NEVER: lambda _: "resume.how=never",
    NextReason.TIME_LIMIT: lambda _: "the time of its allocation is nearly up",
    NextReason.STOP_REQUESTED: lambda _: "its job was asked to stop",
    NextReason.SCHEDULER_ENDS: lambda event: f"{event.scheduler} ends its job ({event.state})",
    NextReason.PREEMPTED: lambda event: (
        f"{event.scheduler} has preempted its job, and starts it again unless the site cancels such jobs"
    ),
    NextReason.NOT_SUBMITTED: lambda event: f"no job could be submitted to continue it: {event.error}",
    NextReason.UNREADABLE: lambda event: event.error or "a file cannot be read",
    NextReason.LAUNCHER_ERROR: lambda _: "launcher.job.requeue failed: its messages are in the output",
    NextReason.NO_PROGRESS: _no_progress,
    NextReason.MAX_ATTEMPTS: lambda event: (
        f"it has had {plural(event.attempts, 'attempt')} (resume.max_attempts)"
        if event.attempts
        else "no job of its chain follows"
    ),
}


# -- other events


def of_place(place: events.Place) -> str:
    """Returns the name of an agent in messages: `node2 (node 1)`, or `rank 3 on node2` with launch=tasks."""
    return node_of(place.host, place.node) if place.task is None else rank_on(place.task, place.host)


def of_resized(event: events.Resized) -> str:
    """Returns a line about a new round: the nodes that it has lost or gained, and the number of its members."""
    changes = {"without": event.without, "with": event.back}
    parts = [f"{preposition} {first_of([*map(of_place, places)])}" for preposition, places in changes.items() if places]
    return f"round {event.round} continues {' and '.join(parts)}: {event.members} of {event.size}"


def of_restored(event: events.Restored) -> str:
    where = "copies in memory" if event.memory else "the checkpoint on disk"
    redone = "" if event.redone is None else f", {plural(event.redone, 'step')} to be done again"
    return f"continues after step {event.step}, from {where}{redone}"
