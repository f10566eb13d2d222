"""The ranks of one agent on their own cores: where the node's description, the plan and the round come together.

    ranks, told = Binder(plan, os.environ).bind(meeting.members, position, ranks)

The masks are set in each rank, right after the fork (`workers`): threads and processes that it starts inherit them.
Memory is where it is touched first, which is the kernel's default policy, and so near to those cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from launcher.binding import devices, masks, nvidia, sysfs, wanted
from launcher.binding.devices import Untold
from launcher.binding.masks import Binding, Near
from launcher.binding.node import Node
from launcher.config.schema import Device, LaunchMode
from launcher.formatting import ranges
from launcher.rendezvous.rank_environment import AgentLike, Placement
from launcher.runs.events import Bound, BoundRank
from launcher.spec.plan import JobPlan
from launcher.worker.devices import torch_build
from launcher.worker.threads import OWN_CORES

THREADS = "OMP_NUM_THREADS"
SCHEDULERS = "launch=tasks: the scheduler has bound each rank"


Look = Callable[[], "tuple[Node, Set[int]]"]  # what the node looks like, and the CPUs that the job may use there


def look_here(environ: Mapping[str, str]) -> tuple[Node, Set[int]]:
    """This node, and the CPUs that this process may use: those of the job, without what the site keeps for itself."""
    return sysfs.read(environ=environ), os.sched_getaffinity(0)


class Binder:
    """Binds the ranks of one agent, anew for each round; its node is looked at once."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], look: Look | None = None) -> None:
        """
        Args:
            plan: the run.
            environ: of the agent.
            look: in place of a look at this node.
        """
        self._plan, self._environ = plan, dict(environ)
        self._wanted = wanted.parse(plan.launch.bind)
        self._look = look or partial(look_here, self._environ)
        self._seen: tuple[Node, Set[int]] | None = None

    def bind(
        self, agents: Sequence[AgentLike], position: int, ranks: Sequence[Placement]
    ) -> tuple[list[Placement], Bound]:
        """The ranks with their CPUs, and what is told of it.

        Args:
            agents: all that are in, in the order of their ranks.
            position: of this one among them.
            ranks: its own.

        Raises:
            BindingRefused: a list of launch.bind does not fit this node.
        """
        if self._seen is None:
            self._seen = self._look()
        node, allowed = self._seen
        before, found = self._binding(node, allowed, agents, position)
        mine = found.ranks[before : before + len(ranks)]
        placed = [
            replace(
                rank,
                cpus=bound.cpus,
                environment={**rank.environment, **self._variables(bound.cores)},
            )
            if found.bound
            else rank
            for rank, bound in zip(ranks, mine, strict=True)
        ]
        told = Bound(
            host=agents[position].host,
            round=int(ranks[0].environment["LAUNCHER_ROUND"]),
            node=node.kind,
            allowed=ranges(sorted(allowed)),
            why_not=found.why_not,
            ranks=tuple(_told(rank.rank, bound) for rank, bound in zip(ranks, mine, strict=True)),
        )
        return placed, told

    def _binding(
        self, node: Node, allowed: Set[int], agents: Sequence[AgentLike], position: int
    ) -> tuple[int, Binding]:
        """How many of the ranks that it is about come before this agent's, and the binding of all of them.

        Simulated nodes of one machine share its cores. With launch=tasks each rank has an agent, and what the scheduler
        has given to that.
        """
        me = agents[position]
        tasks = self._plan.launch.mode == LaunchMode.tasks.value
        if tasks and self._wanted.kind == wanted.AUTO:
            return 0, replace(masks.bind(node, allowed, [Near()], wanted.Wanted(wanted.NONE)), why_not=SCHEDULERS)
        alone = tasks or self._wanted.kind == wanted.MAP
        beside = [agent for agent in agents if agent.host == me.host and (agent is me or not alone)]
        try:
            here = [each for agent in beside for each in self._near(node, agent, tasks)]
        except Untold as error:
            count = sum(agent.ranks for agent in beside)
            found = masks.bind(node, allowed, [Near()] * count, wanted.Wanted(wanted.NONE))
            return _before(beside, me), replace(found, why_not=str(error))
        lists = self._wanted
        if tasks and lists.kind == wanted.MAP:
            lists = wanted.Wanted(wanted.MAP, lists.lists[me.first_local_rank :])
        return _before(beside, me), masks.bind(node, allowed, here, lists, cpus_per_rank=self._plan.cpus_per_proc)

    def _near(self, node: Node, agent: AgentLike, tasks: bool) -> list[Near]:
        plan = self._plan
        first = agent.first_local_rank if tasks else 0
        asked = plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0
        seen = plan.workload.device != Device.cpu.value and bool(torch_build() and devices.visible(node, self._environ))
        return devices.near(
            node, self._environ, range(first, first + agent.ranks), gpus=asked > 0 or seen, most=asked or None,
            parent=nvidia.parent_of_slice,
        )  # fmt: skip

    def _variables(self, cores: int) -> dict[str, str]:
        return {OWN_CORES: str(cores), **threads(self._environ, self._plan, cores)}


def threads(environ: Mapping[str, str], plan: JobPlan, cores: int) -> dict[str, str]:
    """OMP_NUM_THREADS of a rank that is bound. Pure.

    | OMP_NUM_THREADS of the agent | the rank's |
    |---|---|
    | any, and train.invariant | the same: the order of sums depends on it |
    | unset | its cores |
    | what the job's script sets, which is cpus_per_proc, and more than its cores | its cores |
    | any other | the same: the user's |
    """
    told = environ.get(THREADS)
    ours = not told or (told == str(plan.cpus_per_proc) and int(told) > cores)
    return {THREADS: str(cores)} if ours and not plan.train.invariant else {}


def _told(rank: int, bound: masks.Bound) -> BoundRank:
    gpu, nic = bound.near.gpu, bound.near.nic
    return BoundRank(
        rank, ranges(bound.cpus), bound.cores, ranges(bound.numa), gpu.name if gpu else None,
        gpu.numa if gpu else None, nic.name if nic else None,
    )  # fmt: skip


def _before(beside: Sequence[AgentLike], me: AgentLike) -> int:
    return sum(agent.ranks for agent in beside[: [agent is me for agent in beside].index(True)])
