"""The slot manager of a node that runs its part of the points of another one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.errors import RESUME
from launcher.pilots.manager import stops_of
from launcher.pilots.slots import Group, Slot
from launcher.runs.directory import Attempt
from launcher.runs.events import ManagerEnded, PointBegan, PointEnded
from tests.unit.pilots.managers import BEGAN, SECOND, Following, Points, packed_sweep


@pytest.fixture
def node(tmp_path: Path) -> Following:
    found = Following(packed_sweep(tmp_path, 4, slots=2, nodes=2, nodes_per_point=2), Points({2: 7}))
    found.leader(BEGAN)
    return found


def began(point: int, slot: int, attempt: int = 0) -> PointBegan:
    return PointBegan(point=point, slot=slot, attempt=attempt)


def ended(point: int, slot: int) -> PointEnded:
    return PointEnded(point=point, slot=slot, code=0, kind="done")


def test_parts_of_points_that_have_begun_are_started_and_their_ends_recorded(
    node: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.leader(began(3, 0), ended(3, 0), began(1, 0, attempt=4), began(2, 1))  # 3 was over before this node was there
    node.steps += [lambda: len(node.ends()) == 2, lambda: node.leader(ended(2, 1), began(2, 1, attempt=1))]
    node.steps += [lambda: len(node.ends()) == 3, lambda: node.leader(ManagerEnded())]
    node.run(monkeypatch)
    assert node.points.started == [1, 2, 2]
    assert sorted(node.ends()) == [(1, 4, 0), (2, 0, 7), (2, 1, 7)]


def test_a_part_whose_point_has_ended_makes_room_for_the_next_one(
    node: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.points.codes = {0: None}
    node.leader(began(0, 0))
    node.steps += [lambda: node.points.started == [0], lambda: node.leader(ended(0, 0), began(1, 0))]
    node.steps += [lambda: len(node.ends()) == 2, lambda: node.leader(ManagerEnded())]
    node.run(monkeypatch)
    assert node.ends() == [(0, 0, -9), (1, 0, 0)]


def test_a_part_is_killed_with_the_first_node_of_its_group(node: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def start(attempt: Attempt, slot: Slot, group: Group) -> int:
        pids.append(Points({0: None})(attempt, slot, group))
        return pids[-1]

    node.start = start
    node.leader(began(0, 0))
    node.steps += [lambda: pids, lambda: node.leader(ManagerEnded())]
    node.run(monkeypatch)
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == -9


def test_a_first_node_that_is_silent_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Following(packed_sweep(tmp_path, 1, lease=0), Points({}))
    node.leader(BEGAN)
    node.run(monkeypatch)
    assert node.points.started == []


def test_a_stop_is_told_to_the_others_and_the_pilot_can_be_resumed(
    node: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.signals._take(signal.SIGTERM, None)
    node.steps += [stops_of(node.sweep, SECOND).exists, lambda: node.leader(ManagerEnded())]
    with pytest.raises(SystemExit) as left:
        node.run(monkeypatch)
    assert left.value.code == RESUME
