"""Which nodes of a pilot run points together."""

from __future__ import annotations

import pytest

from launcher.pilots.slots import group_of
from launcher.runs.claims import Manager

HOSTS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("node", "size", "found"),
    [
        (1, 1, (1, ("b",), 0)),
        (0, 2, (0, ("a", "b"), 0)),
        (3, 2, (2, ("c", "d"), 1)),
        (4, 2, None),
        (2, 3, (0, ("a", "b", "c"), 2)),
        (3, 3, None),
        (4, 5, (0, tuple(HOSTS), 4)),
    ],
)
def test_the_group_of_a_node(node: int, size: int, found: tuple[int, tuple[str, ...], int] | None) -> None:
    group = group_of(Manager(1, 2, 3, node), HOSTS, size)
    if found is None:
        assert group is None
        return
    first, hosts, place = found
    assert group is not None
    assert (group.leader, group.hosts, group.place) == (Manager(1, 2, 3, first), hosts, place)
    assert group.host == HOSTS[node]
    assert group.followers == {each: Manager(1, 2, 3, first + each) for each in range(1, size)}
