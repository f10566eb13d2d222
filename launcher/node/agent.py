"""One agent per node: it meets the others, forks this node's ranks, watches them, and says how it ended.

After a fault that ranks can resume from it does so again, in the next round; see `restarts` and `rounds`.
torch is loaded once; ranks are forked from here before any GPU is touched.
With launch=tasks every rank has an agent of its own, started by the scheduler, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException

from launcher import errors, runs
from launcher.config import LaunchMode
from launcher.node import orphans, topology
from launcher.node.answers import Desk
from launcher.node.elastic import Agent, AttemptFailed, Means, NextRound
from launcher.node.events import Events, current_attempt
from launcher.node.preflight import Preflight
from launcher.node.preflight_verdict import Then
from launcher.node.pulse import Pulse
from launcher.node.rendezvous import Meeting, Member, RendezvousError
from launcher.node.restarts import History
from launcher.node.rounds import AttemptOver, Overtaken, Rounds
from launcher.node.told import Told
from launcher.node.watchdog import Stacks
from launcher.plan import JobPlan


def run(run_dir: str) -> dict[str, Any]:
    """Runs this node's part of the attempt: the payload of every job.

    Returns:
        The metrics of the first rank of this agent.

    Raises:
        AttemptFailed: with the cause and the exit code that the job script decides by.
    """
    attempt = current_attempt()
    if attempt is None:
        raise AttemptFailed(f"{run_dir}: not started by a job script of the launcher", errors.NO_RETRY)
    plan = attempt.run.plan()
    for name in list(logging.root.manager.loggerDict):  # torch gives each of them a level of its own
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # we say the cause ourselves, once
    told = Told()
    told.install()  # submitit has just installed its own
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP"  # torch's agent would handle the others in its own way
    orphans.adopt()
    try:
        place = topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text())
    except topology.TopologyError as error:
        raise AttemptFailed(f"{socket.gethostname()}: {error}", errors.NO_RETRY) from None
    events, host = Events(attempt, f"node-{place.rank}"), place.hosts[place.node_rank]
    try:
        return _run(plan, attempt, place, events, told)
    except AttemptOver as over:
        print(f"launcher: {host} waited to join, and is not needed any more: {over}", file=sys.stderr)
        return {}
    except _LeftOut:
        return {}
    except RendezvousError as error:
        events("fault", cause=str(error), host=host)
        raise AttemptFailed(str(error), ours=not error.told, decides=place.rank == 0) from None
    except SignalException as error:
        cause = f"{host} was told to stop ({error.sigval.name}) before its ranks had started"
        events("fault", cause=cause, host=host)
        raise AttemptFailed(cause, 128 + error.sigval) from None


def _run(plan: JobPlan, attempt: runs.Attempt, place: topology.Topology, events: Events, told: Told) -> dict[str, Any]:
    per_task = plan.launch == LaunchMode.tasks.value
    me = Member(
        place.rank,
        place.node_rank,
        place.hosts[place.node_rank],
        ranks=1 if per_task else plan.procs_per_node,
        first_local_rank=place.local_rank,
    )
    rounds = Rounds(
        plan,
        attempt,
        me,
        expected=_names(plan, place),
        hosts=_hosts(plan, place),
        key=f"{plan.run_id}/{attempt.number}/{place.job}",
    )
    number, meeting = rounds.first()
    _set_network(plan, meeting, me.host)
    history = History(round=number, listened=number > 0)
    if plan.preflight and number == 0:
        history, meeting = _checked(plan, attempt, events, rounds, meeting)
    _preload(plan)
    stacks = Stacks(me.ranks)
    means = Means(plan, attempt, events, told, rounds, Pulse(me.ranks), stacks, Desk(attempt, stacks))
    while True:
        index = [member.index for member in meeting.members].index(me.index)
        events(
            "met", port=meeting.port, members=len(meeting.members), ranks=sum(each.ranks for each in meeting.members),
            interface=meeting.interface, source=place.source,
            host=me.host, torch=torch.__version__, round=history.round,
        )  # fmt: skip
        history = _agree(meeting, index, history)
        try:
            outcome = _round(Agent(means, meeting, index, history))
        except AttemptFailed:
            if not (rounds.elastic and rounds.begun(history.round + 1)):
                raise
            told.install()  # it was about to end
            number, meeting = rounds.join()  # the others have gone on without this member
            history = History(round=number, listened=True)
            continue
        if not isinstance(outcome, NextRound):
            break
        before = meeting
        history, meeting = _next(rounds, outcome, meeting)
        if meeting.members[0].index == me.index:
            _tell_changes(rounds, history.round, before, meeting, events)
    events("finished")
    if index == 0:
        attempt.write_exit_code(errors.DONE)
    return outcome


class _LeftOut(Exception):
    """The preflight found this node bad, and the others go on without it."""


def _checked(
    plan: JobPlan, attempt: runs.Attempt, events: Events, rounds: Rounds, meeting: Meeting
) -> tuple[History, Meeting]:
    """The first meeting whose nodes are all found fine: bad ones are left out, and the others meet again.

    Raises:
        _LeftOut: this node is bad.
        AttemptFailed: too few nodes are left.
        RendezvousError: the others did not meet again.
    """
    number = 0
    while True:
        index = [member.index for member in meeting.members].index(rounds.me.index)
        verdict = Preflight(
            plan, attempt, events, meeting, index, least=rounds.least, name=rounds.names, round_number=number
        ).run()
        if verdict.then is Then.GO:
            return History(round=number), meeting
        if verdict.then is Then.FAIL:
            if index == 0:
                events("fault", cause=verdict.cause, exit_code=verdict.exit_code, host=rounds.me.host)
            raise AttemptFailed(verdict.cause, verdict.exit_code, ours=index == 0, decides=index == 0)
        if rounds.me.index in verdict.lost:
            raise _LeftOut
        before, number = meeting, number + 1
        try:
            meeting = rounds.next(number, before, verdict.lost)
        except Overtaken:
            number, meeting = rounds.join()
            return History(round=number, listened=True), meeting
        if meeting.members[0].index == rounds.me.index:
            _tell_changes(rounds, number, before, meeting, events)


def _tell_changes(rounds: Rounds, number: int, before: Meeting, now: Meeting, events: Events) -> None:
    """Says who is not in any more, and who is back."""
    old, new = ({member.index for member in meeting.members} for meeting in (before, now))
    changes = {"without": old - new, "with": new - old}
    words = [f"{verb} {rounds.names(sorted(indices))}" for verb, indices in changes.items() if indices]
    if words:
        told = f"round {number} goes on {' and '.join(words)}: {len(new)} of {rounds.size}"
        events(
            "resized", round=number, cause=told, members=len(new), world_size=sum(each.ranks for each in now.members)
        )
        with contextlib.suppress(OSError):
            print(f"launcher: {told}", file=sys.stderr, flush=True)


def _agree(meeting: Meeting, index: int, history: History) -> History:
    """The history as the master knows it: a member that was away has missed some."""
    if index == 0:
        meeting.store.set("history", json.dumps(asdict(history)))
        return history
    return History(**json.loads(meeting.store.get("history")))


def _round(agent: Agent) -> NextRound | dict[str, Any]:
    """One life of the ranks; the metrics of the first of them when the work is done."""
    previous, told = os.umask(agent.means.plan.umask), agent.means.told
    told.patient = True
    ended: AttemptFailed | None = None
    following: NextRound | None = None
    try:
        result = agent.run()
        following = agent.outcome(result)
    except SignalException as error:
        ended = agent.stopped(error.sigval)
    except AttemptFailed as failed:
        ended = failed
    finally:
        os.umask(previous)
        told.patient = False
        if following is None:
            told.ignore()
            agent.part()
        agent.close()
    if ended is not None:
        raise ended
    return following or dict(result.return_values[min(result.return_values)] or {})


def _next(rounds: Rounds, outcome: NextRound, before: Meeting) -> tuple[History, Meeting]:
    """The meeting of the next round.

    Raises:
        AttemptFailed: it does not come about; the run can be resumed.
        AttemptOver: the others went on without this member, and have ended.
    """
    history = outcome.history
    try:
        if rounds.me.index in outcome.lost:  # the others have given this member up
            raise Overtaken
        try:
            return history, rounds.next(history.round, before, outcome.lost)
        except Overtaken:
            if not rounds.elastic:
                raise
    except Overtaken:
        pass
    except RendezvousError as error:
        raise AttemptFailed(
            f"{error}; before that: {history.first}", errors.RESUME, ours=not error.told, decides=not error.told
        ) from None
    except SignalException as error:
        cause = f"{rounds.me.host} was told to stop ({error.sigval.name}) between two rounds"
        raise AttemptFailed(cause, errors.RESUME, decides=True) from None
    number, meeting = rounds.join()
    return History(round=number, listened=True), meeting


def _hosts(plan: JobPlan, place: topology.Topology) -> list[str]:
    """The host of each member."""
    per_node = plan.procs_per_node if plan.launch == LaunchMode.tasks.value else 1
    return [host for host in place.hosts for _ in range(per_node)]


def _names(plan: JobPlan, place: topology.Topology) -> list[str]:
    """What to call each member in an error."""
    if plan.launch == LaunchMode.tasks.value:
        return [f"rank {task} on {place.hosts[task // plan.procs_per_node]}" for task in range(place.world_size)]
    return [f"{host} (node {node})" for node, host in enumerate(place.hosts)]


def _preload(plan: JobPlan) -> None:
    """Imports the workload, and the module of a function, while the ranks can still share it.

    An import that fails, or hangs, is left to the ranks: the user sees their traceback, or which of them is missing.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(plan.rendezvous_timeout)
    try:
        with contextlib.suppress(Exception):
            for name in (plan.entry, plan.params.get("target", "")):
                if module := name.partition(":")[0]:
                    importlib.import_module(module)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _set_network(plan: JobPlan, meeting: Meeting, host: str) -> None:
    """Tells gloo and NCCL which interface to use: the profile's, else (gloo) the one that reached the master."""
    if plan.interface:
        known = [name for _, name in socket.if_nameindex()]
        if missing := [name for name in plan.interface.split(",") if name not in known]:
            raise RendezvousError(
                f"{host} has no network interface {', '.join(missing)} (cluster.interface); it has {', '.join(known)}"
            )
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, plan.interface)
    elif meeting.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.interface)
