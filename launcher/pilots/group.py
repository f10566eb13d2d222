"""A group: the nodes of a pilot that run points together, where a point needs several nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.runs.claims import Manager
from launcher.runs.directory import Attempt


@dataclass(frozen=True)
class Group:
    """As many nodes as a point needs. The slot manager of the first one claims points, and the others follow it."""

    leader: Manager  # the slot manager of the first node
    hosts: tuple[str, ...]  # host names of the group's nodes, by node rank
    place: int  # index of this node in `hosts`; the first node leads

    @property
    def host(self) -> str:
        """Host name of this node."""
        return self.hosts[self.place]

    @property
    def followers(self) -> dict[int, Manager]:
        """The slot managers of the nodes other than the first, by the node's index in `hosts`."""
        first = self.leader.node
        return {place: dataclasses.replace(self.leader, node=first + place) for place in range(1, len(self.hosts))}


def group_of(mine: Manager, hosts: Sequence[str], size: int) -> Group | None:
    """Returns the group of a node. None: the node is one of the last, which are fewer than a point needs.

    Args:
        mine: the slot manager of the node.
        hosts: host names of all nodes of the round, by node rank.
        size: number of nodes that a point needs.
    """
    first = mine.node - mine.node % size
    its = tuple(hosts[first : first + size])
    return Group(dataclasses.replace(mine, node=first), its, mine.node - first) if len(its) == size else None


def printed_on(attempt: Attempt, place: int) -> Path:
    """Returns the output file of an attempt on the node at index `place` of the group, other than the first.

    Each such node has its own file, since appends from several nodes to one file are not safe on NFS.
    """
    return attempt.path / "tasks" / f"{place}.out"
