"""The words for each event: one line about a fault, a stop, what follows it, and others. Only this module has them."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.failures.codes import (
    AgentPhase,
    CollectiveSign,
    FaultCode,
    HangSign,
    NextReason,
    PreflightReason,
    SetupPart,
    StopReason,
)
from launcher.formatting import name_ranks, plural

if TYPE_CHECKING:
    from launcher.runs import events


MOST_NAMES = 10  # at most so many agents are named in a text
MOST_RANKS = 4  # at most so many ranks are named as the cause of a hang


def signal_name(number: int) -> str:
    """Returns the name of a signal (`SIGKILL`), or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def of_unused_gpus(event: events.GpusUnused) -> str:
    ranks = f"{name_ranks(event.ranks)} on {event.host}"
    if event.opened:
        return f"{ranks}: a GPU is used now"
    return (
        f"{ranks}: no GPU was used in {event.seconds:g} s, though the run asked for {plural(event.gpus, 'GPU')} a node "
        "(gpus_per_node): does the code put its model and its data on the device?"
    )


# -- faults


def of_fault(fault: events.Fault) -> str:
    """Returns what failed and where, as one line, with the number of restarts that did not help."""
    cause = _FAULTS.get(fault.code, _error)(fault)
    if fault.repeated:
        return f"{cause}; after a restart they hung there again"
    if not fault.restarts:
        return cause
    return f"{cause}; {plural(fault.restarts, 'restart')} got no further (launch.max_restarts={fault.max_restarts})"


def _error(fault: events.Fault) -> str:
    who = _rank(fault) if fault.rank is not None else fault.host
    if fault.reading and fault.reading not in (fault.error or ""):
        who += f", loading {fault.reading}"
    return ": ".join(part for part in (who, fault.error) if part)


def _rank(fault: events.Fault) -> str:
    return _rank_on(fault.rank, fault.host) if fault.rank is not None else f"a rank on {fault.host}"


def _rank_on(rank: int | str | None, host: str) -> str:
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def _hosts(fault: events.Fault) -> str:
    return _first_of([each.host for each in fault.accused] or [fault.host])


def _agents(accused: Sequence[events.Accused]) -> str:
    return _first_of([
        _node(each.host, each.node) if each.rank is None else _rank_on(each.rank, each.host) for each in accused
    ])  # fmt: skip


def _node(host: str, node: int | None) -> str:
    return host if node is None else f"{host} (node {node})"


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")


def _ended(fault: events.Fault) -> str:
    who = _rank(fault) if fault.rank is not None else f"the task on {fault.host}"
    how = "was killed" if fault.exit_code is None else f"exited with code {fault.exit_code}"
    how = f"killed by {fault.signal}" if fault.signal is not None else how
    return f"{who}: {how}" + (f": {fault.error}" if fault.error else "")


def _not_started(fault: events.Fault) -> str:
    maximum = fault.start.maximum if fault.start else None
    now = "unlimited" if maximum is None or maximum < 0 else str(maximum)
    fix = {
        errno.EAGAIN: f"no more processes are allowed here: raise `ulimit -u` (now {now}) or the job's pids limit, "
                      "or have fewer ranks (procs_per_node) and data loader workers",
        errno.ENOMEM: "there is no memory for one more process: ask for more, or have fewer ranks (procs_per_node)",
        errno.EMFILE: f"the agent may open no more files: raise `ulimit -n` (now {now}), for instance in cluster.setup",
        errno.ENFILE: "the node has no more files to open (sysctl fs.file-max): other processes on it hold them",
    }.get(fault.start.errno if fault.start else 0)  # fmt: skip
    return f"{_rank(fault)} cannot be started: {fault.error}" + (f"; {fix}" if fix else "")


def _open_files(fault: events.Fault) -> str:
    numbers = f": {fault.start.maximum}, and its agent needs {fault.start.needed}" if fault.start else ""
    return (
        f"{_node(fault.host, fault.node)} allows a process too few open files for these ranks (`ulimit -Hn`{numbers}): "
        "have the limit raised (for Slurm: LimitNOFILE of slurmd), or have fewer ranks"
    )


_SIGNS = {
    HangSign.STOPPED: "is stopped (state T)",
    HangSign.DEVICE: "waits for a device or a file server (state D)",
    HangSign.NO_STACK: "does not even write its stack",
    HangSign.OUTSIDE: "is in no collective, and others wait for it in one",
    HangSign.BEHIND: "is behind the others",
    HangSign.ALL: "is silent, as are all others",
}
_LIMITS = {
    "launch.start_timeout": "no first step{seconds} of joining (launch.start_timeout)",
    "launch.idle_timeout": "no CPU time, output or step of any rank{seconds} (launch.idle_timeout)",
    "launch.hang_timeout": "no step{seconds} (launch.hang_timeout)",
}


def _seconds(fault: events.Fault, preposition: str) -> str:
    return "" if fault.seconds is None else f" {preposition} {fault.seconds:g} s"


def _hang(fault: events.Fault) -> str:
    ranks = "; ".join(_rank_on(each.rank, each.host) for each in fault.accused[:MOST_RANKS]) or "all ranks"
    sign, collective = (fault.hang.sign, fault.hang.collective) if fault.hang else (HangSign.UNKNOWN, None)
    does = _SIGNS.get(sign, "hangs" if fault.accused else "hang") if collective is None else _blocks(collective)
    return f"{ranks} {does}{_expired(fault)}"


def _expired(fault: events.Fault) -> str:
    slowest, stacks = (fault.hang.slowest, fault.hang.stacks) if fault.hang else (None, "")
    preposition = "within" if fault.limit == "launch.start_timeout" else "for"
    why = _LIMITS.get(fault.limit or "", "").format(seconds=_seconds(fault, preposition))
    if why and slowest is not None:
        why += f" after step {slowest}" if slowest >= 0 else " before the first step"
    return (f": {why}" if why else "") + (f"; the stacks of all ranks are in {stacks}" if stacks else "")


_BLOCKS = {
    CollectiveSign.NOT_CALLED: "has not called {what}, in which {waiting}",
    CollectiveSign.OTHER_CALLED: "has called {called} where the others have called {what}",
    CollectiveSign.NOT_FINISHED: "does not finish {what}, which the others have finished",
    CollectiveSign.NOT_BEGUN: "has called {what}, but its GPU does not begin it, and {waiting} in it",
    CollectiveSign.UNKNOWN: "blocks {what}",
}


def _blocks(collective: events.BlockedCollective) -> str:
    one = collective.waiting.isdecimal()
    return _BLOCKS[collective.sign].format(
        what=f"{collective.operation} (number {collective.number} of process group {collective.group})",
        waiting=f"rank{'' if one else 's'} {collective.waiting} wait{'s' if one else ''}", called=collective.called,
    )  # fmt: skip


def _returned_early(fault: events.Fault) -> str:
    more = max(0, len(fault.accused) - 1)
    ranks = _rank(fault) + (f" and {plural(more, 'other rank')}" if more else "")
    if fault.needed_by is None and fault.hang is None:
        return f"{ranks} exited with code 0 before its work was done"
    who = _rank_on(fault.needed_by.rank, fault.needed_by.host) if fault.needed_by else "all others"
    return f"{ranks} exited with code 0 while {who} still needed {'them' if more else 'it'}{_expired(fault)}"


def _not_joined(fault: events.Fault) -> str:
    ranks = ", ".join(str(each.rank) for each in fault.accused)
    hosts = ", ".join(dict.fromkeys(each.host for each in fault.accused if each.host))
    return f"{_rank_on(ranks, hosts)} did not join the others{_seconds(fault, 'within')}: does an import hang?"


def _node_ended(fault: events.Fault) -> str:
    how = _WHEN.get(fault.during, "(killed, or lost)")
    after = f"; then {of_request(fault.then.host, fault.then.signal)}" if fault.then else ""
    return f"{_hosts(fault)} exited without an error report {how}{after}"


def _agent_error(fault: events.Fault) -> str:
    return f"the agent on {fault.host} cannot continue: {fault.error}"


def _leader_lost(fault: events.Fault) -> str:
    if not fault.accused:
        return _agent_error(fault)
    lost = f"the connection to {_agents(fault.accused)}, which leads, is lost"
    return f"{lost}: {fault.error}" if fault.error else lost


def _rendezvous_timeout(fault: events.Fault) -> str:
    who = _agents(fault.accused) or "not all agents"
    came = f": {fault.agents.arrived} of {fault.agents.expected} arrived" if fault.agents else ""
    return f"{who} did not reach {_node(fault.host, fault.node)} in time{came}"


def _preflight(fault: events.Fault) -> str:
    failure = fault.preflight
    if failure is None:
        return "preflight: the nodes cannot run the job"
    first = failure.findings[0].found.words if failure.findings else "no details"
    if failure.reason is PreflightReason.UNKNOWN_NODE:
        lost = f"{failure.failed} of {failure.nodes} nodes lost the others, and the bad node is unknown"
        return f"preflight: {lost}: {first}"
    if failure.reason is PreflightReason.ALL_NODES:
        return f"preflight: all {failure.nodes} nodes fail: {first}"
    shown = "preflight: " + "; ".join(f"{each.name}: {each.found.words}" for each in failure.findings)
    if (more := failure.failed - len(failure.findings)) > 0:
        shown += f"; and {more} more"
    if failure.nodes == 1:
        return shown
    spare = "spare nodes (min_nodes less than nodes)"
    if failure.exclude:
        return f"{shown}. Resume the run with {failure.exclude}, or give it {spare}"
    return f"{shown}. Give the run {spare}, so that it starts without bad ones"


_WHEN: dict[AgentPhase | None, str] = {
    AgentPhase.STARTING: "before its ranks had started",
    AgentPhase.BETWEEN_ROUNDS: "between two rounds",
}


def of_request(host: str, name: str | None) -> str:
    """Returns the text about a stop request: `node1 was asked to stop by SIGTERM`."""
    return f"{host} was asked to stop by {name}" if name else f"{host} was asked to stop"


_FAULTS: dict[FaultCode, Callable[[events.Fault], str]] = {
    FaultCode.RAISED: _error,
    FaultCode.LOST_PEER: lambda fault: f"{_rank(fault)} lost another rank ({fault.error})",
    FaultCode.SIGNALLED: _ended,
    FaultCode.EXITED: _ended,
    FaultCode.RETURNED_EARLY: _returned_early,
    FaultCode.LEFT: _ended,
    FaultCode.NO_RETRY: lambda fault: _error(fault) if fault.error else _ended(fault),
    FaultCode.NOT_STARTED: _not_started,
    FaultCode.STILL_THERE: lambda fault: (
        f"on {fault.host} ranks of the round before still exist after SIGKILL: {fault.error}; what they hold (GPUs, "
        "memory, ports) is not free. Look for a file server or a driver that hangs on this node"
    ),
    FaultCode.HANG: _hang,
    FaultCode.NOT_JOINED: _not_joined,
    FaultCode.NODE_ENDED: _node_ended,
    FaultCode.NODE_SILENT: lambda fault: (
        f"no heartbeat from {_hosts(fault)}{_seconds(fault, 'for')} (launch.heartbeat)"
    ),
    FaultCode.LEADER_LOST: _leader_lost,
    FaultCode.TASK_NOT_STARTED: lambda fault: f"the task on {fault.host} could not be started: {fault.error}",
    FaultCode.TASK_UNKNOWN: lambda fault: f"it is not known how the task on {fault.host} ended: {fault.error}",
    FaultCode.NODE_RETURNED: lambda fault: f"{_first_of([of_place(each) for each in fault.back])} came back",
    FaultCode.STOPPED_EARLY: lambda fault: (
        f"{of_request(fault.host, fault.signal)} {_WHEN.get(fault.during, '')}".rstrip()
    ),
    FaultCode.RENDEZVOUS_TIMEOUT: _rendezvous_timeout,
    FaultCode.NOT_REACHED: lambda fault: (
        f"{fault.host} could not reach {_agents(fault.accused) or 'its leader'}{_seconds(fault, 'within')}: "
        f"{fault.error}"
    ),
    FaultCode.TOO_FEW: lambda fault: (
        "too few agents are left" if fault.agents is None
        else f"of the {fault.agents.expected} agents that are needed only {fault.agents.arrived} are left"
    ),
    FaultCode.LATE: lambda fault: f"the others have begun without {_node(fault.host, fault.node)}",
    FaultCode.NOT_A_MEMBER: lambda fault: (
        f"agent {fault.node} does not belong to this attempt: was it started by mistake, or twice?"
    ),
    FaultCode.OPEN_FILES: _open_files,
    FaultCode.PREFLIGHT: _preflight,
    FaultCode.CONDITION_FAILED: lambda fault: f"it was not started: {fault.error}",
    FaultCode.AGENT: _agent_error,
}  # fmt: skip


# -- stops


def of_stop(stop: events.Stop) -> str:
    """Returns why an attempt ended early, and which ranks had to be killed."""
    other = stop.error or stop.reason.value.replace("_", " ")
    cause = _STOPS[stop.reason](stop) if stop.reason in _STOPS else other
    if stop.killed_on is None:
        return cause
    return f"{cause}; ranks on {stop.killed_on} did not exit within {stop.grace or 0.0:g} s and were killed"


def _ranks_stopped(stop: events.Stop) -> str:
    ranks = f"rank{'' if len(stop.ranks) == 1 else 's'} {', '.join(map(str, sorted(stop.ranks)))}"
    return f"{ranks} on {stop.host} exited with code 75"


_STOPS: dict[StopReason, Callable[[events.Stop], str]] = {
    StopReason.TIME_LIMIT: lambda _: "its time is nearly up",
    StopReason.WARNING_SIGNAL: lambda stop: f"the scheduler's warning signal ({_rank_on(stop.rank, stop.host)})",
    StopReason.STOP_FILE: lambda _: "its stop file",
    StopReason.CANCELLED: lambda _: "it was cancelled before it started",
    StopReason.SIGNAL: lambda stop: (
        of_request(stop.host, stop.signal) if stop.rank is None else f"asked to stop ({_rank_on(stop.rank, stop.host)})"
    ),
    StopReason.EXIT_75: _ranks_stopped,
    StopReason.NOT_IN_TIME: lambda stop: f"the ranks on {stop.host} did not exit in time",
    StopReason.KILLED: lambda stop: f"all agents were killed (exit code {stop.exit_code})",
    StopReason.UNREADABLE: lambda stop: stop.error or "a file that it needs cannot be read",
    StopReason.EXIT_UNREAD: lambda _: "the exit codes of its agents cannot be read",
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
    NextReason.STOP_FILE: lambda _: "its stop file",
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
    NextReason.MAX_ATTEMPTS: lambda event: f"it has had {plural(event.attempts or 0, 'attempt')} (resume.max_attempts)",
}


# -- other events


def of_place(place: events.Place) -> str:
    """Returns the name of an agent in messages: `node2 (node 1)`, or `rank 3 on node2` with launch=tasks."""
    return _node(place.host, place.node) if place.task is None else _rank_on(place.task, place.host)


def of_resized(event: events.Resized) -> str:
    """Returns a line about a new round: the nodes that it has lost or gained, and the number of its members."""
    changes = {"without": event.without, "with": event.back}
    parts = [f"{preposition} {', '.join(map(of_place, places))}" for preposition, places in changes.items() if places]
    return f"round {event.round} continues {' and '.join(parts)}: {event.members} of {event.size}"


def of_restored(event: events.Restored) -> str:
    where = "copies in memory" if event.memory else "the checkpoint on disk"
    redone = "" if event.redone is None else f", {plural(event.redone, 'step')} to be done again"
    return f"continues after step {event.step}, from {where}{redone}"


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
    """Returns what messages call a set-up line (from 1), module, environment or folder: `line 2 of env.setup`."""
    return _SETUP[part].format(number=number, name=name, cluster=cluster)
