"""One agent per node: it meets the others, forks this node's ranks, watches them, and says how it ended.

torch is loaded once; ranks are forked from here before any GPU is touched.
With launch=tasks every rank has an agent of its own, started by the scheduler, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException

from launcher import errors, runs
from launcher.config import LaunchMode
from launcher.node import topology
from launcher.node.elastic import Agent, AttemptFailed
from launcher.node.events import Events, current_attempt
from launcher.node.rendezvous import Meeting, Member, RendezvousError, meet
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
    for number in (signal.SIGTERM, signal.SIGINT):  # submitit has just made them do nothing
        signal.signal(number, _told_to_stop)
    for number in (signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    try:
        place = topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text())
    except topology.TopologyError as error:
        raise AttemptFailed(f"{socket.gethostname()}: {error}", errors.NO_RETRY) from None
    events, host = Events(attempt, f"node-{place.rank}"), place.hosts[place.node_rank]
    try:
        return _run(plan, attempt, place, events)
    except RendezvousError as error:
        events("fault", cause=str(error), host=host)
        raise AttemptFailed(str(error), ours=not error.told, decides=place.rank == 0) from None
    except SignalException as error:
        cause = f"{host} was told to stop ({error.sigval.name}) before its ranks had started"
        events("fault", cause=cause, host=host)
        raise AttemptFailed(cause, 128 + error.sigval) from None


def _told_to_stop(number: int, _: object) -> None:
    raise SignalException("told to stop", signal.Signals(number))


def _run(plan: JobPlan, attempt: runs.Attempt, place: topology.Topology, events: Events) -> dict[str, Any]:
    per_task = plan.launch == LaunchMode.tasks.value
    me = Member(
        place.rank,
        place.node_rank,
        place.hosts[place.node_rank],
        ranks=1 if per_task else plan.procs_per_node,
        first_local_rank=place.local_rank,
    )
    meeting = meet(
        me,
        size=place.world_size,
        least=plan.min_nodes * plan.tasks_per_node,
        expected=_names(plan, place),
        master=place.hosts[0] + plan.host_suffix,
        key=f"{plan.run_id}/{attempt.number}/{place.job}",
        port_range=plan.port_range,
        timeout=plan.rendezvous_timeout,
    )
    index = [member.index for member in meeting.members].index(me.index)
    events(
        "met", port=meeting.port, members=len(meeting.members), interface=meeting.interface, source=place.source,
        host=me.host, torch=torch.__version__,
    )  # fmt: skip
    _set_network(plan, meeting, me.host)
    _preload(plan)
    agent = Agent(plan, attempt, meeting, index, events)
    previous = os.umask(plan.umask)
    try:
        result = agent.run()
    except SignalException as error:
        agent.tell_stop(error.sigval)
        raise agent.failure() from None
    finally:
        os.umask(previous)
        faulty = agent.faulty()
        agent.part()
    if result.is_failed() or faulty:
        raise agent.failure()
    events("finished")
    if index == 0:
        attempt.write_exit_code(errors.DONE)
    return dict(result.return_values[min(result.return_values)] or {})


def _names(plan: JobPlan, place: topology.Topology) -> list[str]:
    """What to call each member in an error."""
    if plan.launch == LaunchMode.tasks.value:
        return [f"rank {task} on {place.hosts[task // plan.procs_per_node]}" for task in range(place.world_size)]
    return [f"{host} (node {node})" for node, host in enumerate(place.hosts)]


def _preload(plan: JobPlan) -> None:
    """Imports the workload while the ranks can still share it.

    An import that fails, or hangs, is left to the ranks: the user sees their traceback, or which of them is missing.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(plan.rendezvous_timeout)
    try:
        with contextlib.suppress(Exception):
            importlib.import_module(plan.entry.partition(":")[0])
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
