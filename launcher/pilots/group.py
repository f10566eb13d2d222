"""The nodes of a pilot that run points together, each point on all of them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.runs.claims import Manager
from launcher.runs.directory import Attempt


@dataclass(frozen=True)
class Group:
    """As many nodes as a point needs. The slot manager of the first one takes points, and the others follow it.

    Attributes:
        leader: the slot manager of the first node.
        hosts: of its nodes, in order.
        place: place of this node among them.
    """

    leader: Manager
    hosts: tuple[str, ...]
    place: int

    @property
    def host(self) -> str:
        """Of this node."""
        return self.hosts[self.place]

    @property
    def followers(self) -> dict[int, Manager]:
        """The slot managers of the other nodes, by their place."""
        first = self.leader.node
        return {place: dataclasses.replace(self.leader, node=first + place) for place in range(1, len(self.hosts))}


def group_of(mine: Manager, hosts: Sequence[str], size: int) -> Group | None:
    """The group of a node; None: too few nodes are left for it.

    Args:
        mine: the slot manager of the node.
        hosts: of all nodes of the round, by node rank.
        size: nodes that a point needs.
    """
    first = mine.node - mine.node % size
    its = tuple(hosts[first : first + size])
    return Group(dataclasses.replace(mine, node=first), its, mine.node - first) if len(its) == size else None


def printed_on(attempt: Attempt, place: int) -> Path:
    """Returns the output file of an attempt on one node of the group other than the first.

    Each such node has its own file, since appends from several nodes to one file are not safe on NFS.
    """
    return attempt.path / "tasks" / f"{place}.out"
