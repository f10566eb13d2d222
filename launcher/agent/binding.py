"""The ranks of one agent on their own cores: where the node's description, the plan and the round come together.

    ranks, told = Binder(plan, os.environ).bind(rendezvous.members, position, ranks)

The masks are set in each rank, right after the fork (`workers`): threads and processes that it starts inherit them.
Memory is where it is touched first, which is the kernel's default policy, and so near to those cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from launcher.binding import devices, masks, nvidia, sysfs, wanted
from launcher.binding.devices import DeviceError
from launcher.binding.masks import Binding, RankDevices
from launcher.binding.node import Node
from launcher.config.schema import Device, LaunchMode
from launcher.rendezvous.rank_environment import AgentLike, Placement
from launcher.runs import bindings
from launcher.runs.events import Bound
from launcher.spec.plan import NIC, JobPlan
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
                rank, cpus=bound.cpus if found.bound else (),
                environment={**rank.environment, **self._variables(rank, bound, found.bound)},
            )
            for rank, bound in zip(ranks, mine, strict=True)
        ]  # fmt: skip
        told = bindings.event_of(
            agents[position].host, node, allowed, mine, first_rank=ranks[0].rank, why_not=found.why_not,
            round_number=int(ranks[0].environment["LAUNCHER_ROUND"]),
        )  # fmt: skip
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
            return 0, replace(
                masks.bind(node, allowed, [RankDevices()], wanted.Wanted(wanted.NONE)), why_not=SCHEDULERS
            )
        alone = tasks or self._wanted.kind == wanted.MAP
        on_this_host = [agent for agent in agents if agent.host == me.host and (agent is me or not alone)]
        try:
            here = [each for agent in on_this_host for each in self._near(node, agent, tasks)]
        except DeviceError as error:
            count = sum(agent.ranks for agent in on_this_host)
            found = masks.bind(node, allowed, [RankDevices()] * count, wanted.Wanted(wanted.NONE))
            return _before(on_this_host, me), replace(found, why_not=str(error))
        lists = self._wanted
        if tasks and lists.kind == wanted.MAP:
            lists = wanted.Wanted(wanted.MAP, lists.lists[me.first_local_rank :])
        return _before(on_this_host, me), masks.bind(node, allowed, here, lists, cpus_per_rank=self._plan.cpus_per_proc)

    def _near(self, node: Node, agent: AgentLike, tasks: bool) -> list[RankDevices]:
        plan = self._plan
        first = agent.first_local_rank if tasks else 0
        asked = plan.gpus_per_node if plan.workload.device != Device.cpu.value else 0
        seen = plan.workload.device != Device.cpu.value and bool(
            torch_build() and devices.visible_gpus(node, self._environ, nvidia.parent_of_slice)
        )
        return devices.of_ranks(
            node, self._environ, range(first, first + agent.ranks), gpus=asked > 0 or seen, most=asked or None,
            parent=nvidia.parent_of_slice, pairs=plan.cluster.nics,
        )  # fmt: skip

    def _variables(self, rank: Placement, bound: masks.RankBinding, alone: bool) -> dict[str, str]:
        """Those of a rank's cores, if it is bound, and of the network device that its site pairs with it."""
        plan = self._plan
        found = {OWN_CORES: str(bound.own), **threads(self._environ, plan, bound.own)} if alone else {}
        local_rank = int(rank.environment["LOCAL_RANK"])
        nic = bound.devices.paired or (
            plan.cluster.nics[local_rank % len(plan.cluster.nics)] if plan.cluster.nics else ""
        )
        return found | {name: value.replace(NIC, nic) for name, value in plan.cluster.rank_environment.items()}


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


def _before(on_this_host: Sequence[AgentLike], me: AgentLike) -> int:
    return sum(agent.ranks for agent in on_this_host[: [agent is me for agent in on_this_host].index(True)])
