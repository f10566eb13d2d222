"""Values that all agents exchange while no ranks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent import leader_connection
from launcher.agent.leader_connection import in_turn
from launcher.runs.events import Place
from tests.unit.clock import Clock


class Agents:
    """Reports of `count` agents, of which each poll brings one; counts how often those present are looked through."""

    def __init__(self, count: int) -> None:
        self.reports: dict[str, dict[int, int]] = {"key": {}}
        self._count, self.looks = count, 0

    def present(self) -> set[int]:
        self.looks += 1
        return set(range(self._count))

    def poll(self, clock: Clock, timeout: float) -> list[Any]:
        if len(self.reports["key"]) < self._count:
            self.reports["key"][len(self.reports["key"])] = 7
            clock.now += 1e-4
        else:
            clock.now += timeout
        return []


def collect(agents: Agents, clock: Clock) -> dict[int, Any]:
    self = SimpleNamespace(
        coordinator=agents, send=lambda _: None, poll=lambda timeout: agents.poll(clock, timeout), _inbox=[],
        _signals=SimpleNamespace(require_none=lambda: None),
    )  # fmt: skip
    return leader_connection.LeaderConnection.collect(self, "key", 7, 60.0)  # type: ignore[arg-type]


def test_agents_are_not_looked_through_for_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, agents = Clock(monkeypatch, leader_connection), Agents(4096)
    assert collect(agents, clock) == dict.fromkeys(range(4096), 7)
    assert agents.looks < 5


def test_agents_that_do_not_report_are_waited_for_until_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, agents = Clock(monkeypatch, leader_connection), Agents(3)
    monkeypatch.setattr(agents, "present", lambda: {0, 1, 2, 3})
    before = clock.now
    assert collect(agents, clock) == dict.fromkeys(range(3), 7)
    assert clock.now - before == pytest.approx(60.0, abs=0.01)


@pytest.mark.parametrize(
    ("nodes", "left", "lost", "order"),
    [
        ([0, 1, 2, 3], [1, 2, 3], 0, [1, 2, 3]),
        ([0, 1, 2, 3], [0, 2, 3], 1, [0, 2, 3]),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2], [1, 2, 3, 4, 5, 6, 7, 8], 0, [3, 6, 4, 7, 5, 8, 1, 2]),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2], [1, 2, 4, 5, 6, 7, 8], 0, [6, 4, 7, 5, 8, 1, 2]),  # who knows that 3 is lost, too
        ([0, 0, 1, 1], [0, 1, 3], 2, [0, 1, 3]),
        ([0, 0, 0], [1, 2], 0, [1, 2]),
    ],
)
def test_no_two_agents_of_a_node_that_may_be_lost_are_tried_as_leaders_before_those_of_others(
    nodes: list[int], left: list[int], lost: int, order: list[int]
) -> None:
    places = [Place(host=f"node{node}", node=node) for node in nodes]
    assert in_turn(left, lost, places) == order
