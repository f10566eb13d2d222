"""Chooses the CPU cores of one agent's ranks, from the node's hardware, the plan and the agents of the round.

    ranks, event = Binder(plan, os.environ).bind(rendezvous.members, position, ranks)

Each rank gets its CPU mask right after the fork (see `child`); threads and processes that it starts inherit it. By the
kernel's default policy memory is allocated on the NUMA node that touches it first, so it is local to these cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from launcher.binding import hardware, masks
from launcher.binding.masks import Binding, DeviceError, RankDevices
from launcher.binding.node import Node, Unbound
from launcher.config.schema import Device, LaunchMode
from launcher.failures.codes import UnboundReason
from launcher.rendezvous.rounds import AgentLike, Placement
from launcher.runs import health
from launcher.runs.events import Bound
from launcher.spec.plan import NIC, JobPlan
from launcher.worker.devices import OWN_CORES, torch_build

THREADS = "OMP_NUM_THREADS"

Look = Callable[[], "tuple[Node, Set[int]]"]  # returns the node's hardware, and the ids of the job's CPUs there


def look_here(environ: Mapping[str, str]) -> tuple[Node, Set[int]]:
    """Returns this node's hardware, and the ids of the CPUs that this process may use (sched_getaffinity)."""
    return hardware.read(environ=environ), os.sched_getaffinity(0)


class Binder:
    """Chooses the cores of one agent's ranks in each round. The node's hardware is read only once."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], look: Look | None = None) -> None:
        self._plan, self._environ = plan, dict(environ)
        self._wanted = masks.parse(plan.launch.bind)
        self._look = look or partial(look_here, self._environ)
        self._seen: tuple[Node, Set[int]] | None = None

    def bind(
        self, agents: Sequence[AgentLike], position: int, ranks: Sequence[Placement]
    ) -> tuple[list[Placement], Bound]:
        """Returns an agent's ranks with their CPUs and the variables that depend on them, and the event of this.

        agents: all agents of the round, in the order of their ranks, with this one at `position`.
        Raises BindingRefused: a list of launch.bind does not fit this node.
        """
        if self._seen is None:
            self._seen = self._look()
        node, allowed = self._seen
        before, found = self._binding(node, allowed, agents, position)
        mine = found.ranks[before : before + len(ranks)]
        placed = [
            replace(
                rank, cpus=bound.cpus if found.bound else (),
                environment={**rank.environment, **self._variables(rank, bound, is_bound=found.bound)},
            )
            for rank, bound in zip(ranks, mine, strict=True)
        ]  # fmt: skip
        event = health.bindings_event(
            agents[position].host, node, allowed, mine, first_rank=ranks[0].rank, unbound=found.unbound,
            round_number=int(ranks[0].environment["LAUNCHER_ROUND"]),
        )  # fmt: skip
        return placed, event

    def _binding(
        self, node: Node, allowed: Set[int], agents: Sequence[AgentLike], position: int
    ) -> tuple[int, Binding]:
        # The binding covers the ranks of all agents of this host, since simulated nodes share the cores of one machine.
        # With launch=tasks it covers only this agent's rank, which has its own CPUs from the scheduler.
        own = agents[position]
        tasks = self._plan.launch.mode == LaunchMode.tasks.value
        if tasks and self._wanted.kind == masks.AUTO:
            return 0, masks.unbound(node, allowed, [RankDevices()], Unbound(UnboundReason.SCHEDULER))
        alone = tasks or self._wanted.kind == masks.MAP
        on_this_host = [agent for agent in agents if agent.host == own.host and (agent is own or not alone)]
        try:
            here = [each for agent in on_this_host for each in self._near(node, agent, tasks)]
        except DeviceError as error:
            count = sum(agent.ranks for agent in on_this_host)
            return _before(on_this_host, own), masks.unbound(node, allowed, [RankDevices()] * count, error.unbound)
        lists = self._wanted
        if tasks and lists.kind == masks.MAP:
            lists = masks.Wanted(masks.MAP, lists.lists[own.first_local_rank :])
        found = masks.bind(node, allowed, here, lists, cpus_per_rank=self._plan.cpus_per_proc)
        return _before(on_this_host, own), found

    def _near(self, node: Node, agent: AgentLike, tasks: bool) -> list[RankDevices]:
        plan = self._plan
        first = agent.first_local_rank if tasks else 0
        asked = plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0
        seen = plan.workload.device != Device.cpu.value and bool(
            torch_build() and masks.visible_gpus(node, self._environ, hardware.parent_of_slice)
        )
        return masks.of_ranks(
            node, self._environ, range(first, first + agent.ranks), gpus=asked > 0 or seen, most=asked or None,
            parent=hardware.parent_of_slice, pairs=plan.cluster.nics,
        )  # fmt: skip

    def _variables(self, rank: Placement, binding: masks.RankBinding, *, is_bound: bool) -> dict[str, str]:
        plan = self._plan
        found = {OWN_CORES: str(binding.own), **threads(self._environ, plan, binding.own)} if is_bound else {}
        local_rank = int(rank.environment["LOCAL_RANK"])
        nic = binding.devices.paired or (
            plan.cluster.nics[local_rank % len(plan.cluster.nics)] if plan.cluster.nics else ""
        )
        return found | {name: value.replace(NIC, nic) for name, value in plan.cluster.rank_environment.items()}


def threads(environ: Mapping[str, str], plan: JobPlan, cores: int) -> dict[str, str]:
    """Returns the variable OMP_NUM_THREADS of a bound rank, or nothing if it keeps the agent's value.

    | OMP_NUM_THREADS of the agent | OMP_NUM_THREADS of the rank |
    |---|---|
    | any, if train.invariant | the same: the order of sums depends on it |
    | unset | the number of cores of the rank |
    | cpus_per_proc, as the job script sets it, and more than the rank's cores | the number of cores of the rank |
    | any other | the same: the user has set it |
    """
    given = environ.get(THREADS)
    ours = not given or (given == str(plan.cpus_per_proc) and int(given) > cores)
    return {THREADS: str(cores)} if ours and not plan.train.invariant else {}


def _before(on_this_host: Sequence[AgentLike], own: AgentLike) -> int:
    return sum(agent.ranks for agent in on_this_host[: [agent is own for agent in on_this_host].index(True)])
