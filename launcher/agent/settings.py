"""Settings that an agent derives from the plan: the leader's limits, the places of all agents, network interfaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from launcher.agent.failure_detection import Limits
from launcher.config.schema import Backend, LaunchMode
from launcher.failures.codes import FaultCode
from launcher.rendezvous import store
from launcher.rendezvous.rounds import Member, Rendezvous, RendezvousError
from launcher.runs.events import Fault, Place
from launcher.schedulers import topology
from launcher.spec.plan import JobPlan

BASE_FILES = 64  # open files of an agent without ranks, with some to spare
FILES_PER_RANK = 4  # of a rank's agent: its output, its errors, its report, its stacks


def limits(plan: JobPlan, logs: Path) -> Limits:
    """Returns the settings that the leader needs. `logs`: the directory of the ranks' output files."""
    # Ranks of MPI, and programs, need not join through our store. While one rank is at a breakpoint, all are silent.
    elsewhere = (
        plan.workload.backend == Backend.mpi.value
        or plan.workload.kind == "Program"
        or not plan.workload.params.get("init", True)
    )
    watched = not plan.debugs
    return Limits(
        least=plan.min_nodes * plan.tasks_per_node,
        rendezvous_timeout=None if elsewhere or not watched else plan.launch.rendezvous_timeout,
        start_timeout=plan.launch.start_timeout if watched else None,
        idle_timeout=plan.launch.idle_timeout if watched else None,
        hang_timeout=plan.launch.hang_timeout if watched else None,
        heartbeat=plan.launch.heartbeat,
        max_restarts=plan.launch.max_restarts,
        stacks_in=str(logs),
        independent=plan.independent,
    )


def open_files_needed(ranks: int, agents: int, world_size: int) -> int:
    """Returns the number of open files that an agent, or the process of its ranks' store, needs.

    agents: number of agents that connect to this one, if it may lead the others; else 0.
    world_size: number of ranks that connect to its store, if it may lead the others; else 0.
    """
    return BASE_FILES + max(FILES_PER_RANK * ranks + agents, store.FILES_PER_RANK * world_size)


def places_of(plan: JobPlan, place: topology.Topology) -> list[Place]:
    """Returns the host and node of each agent of the job, by member index.

    place: position of this process in the job, and the job's hosts.
    """
    if plan.launch.mode != LaunchMode.tasks.value:
        return [Place(host=host, node=node) for node, host in enumerate(place.hosts)]
    per_node = plan.procs_per_node
    return [
        Place(host=place.hosts[task // per_node], node=task // per_node, task=task) for task in range(place.world_size)
    ]


def place_of(plan: JobPlan, member: Member) -> Place:
    """Returns the host and node of an agent; with launch=tasks also its rank."""
    task = member.index if plan.launch.mode == LaunchMode.tasks.value else None
    return Place(host=member.host, node=member.node_rank, task=task)


def set_network(plan: JobPlan, rendezvous: Rendezvous, host: str) -> None:
    """Sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to cluster.interface, unless they are set.

    Without cluster.interface it sets only GLOO_SOCKET_IFNAME, to the interface of the connection to the leader.

    Raises RendezvousError: this host has no interface of that name.
    """
    if plan.cluster.interface:
        known = [name for _, name in socket.if_nameindex()]
        if missing := [name for name in plan.cluster.interface.split(",") if name not in known]:
            problem = f"no network interface {', '.join(missing)} (cluster.interface); there are {', '.join(known)}"
            raise RendezvousError(Fault(code=FaultCode.REFUSED, host=host, error=problem))
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, plan.cluster.interface)
    elif rendezvous.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", rendezvous.interface)
