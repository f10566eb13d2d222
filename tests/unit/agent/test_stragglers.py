"""What agents keep of how fast ranks are, and which rank the leader calls slow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import rank_status
from launcher.agent.rank_status import Paces, interval
from launcher.rendezvous.rounds import Member, Rendezvous
from launcher.runs import directory, event_file
from launcher.runs import events as kinds
from tests.unit.plans import bare_plan


@pytest.mark.parametrize(
    ("age", "straggler_time", "seconds"),
    [(0, 60, 10), (2000, 60, 20), (1e6, 60, 60), (0, 4, 1), (1e6, 4, 4), (0, 3600, 10), (1e6, 3600, 60)],
)
def test_events_become_rarer(age: float, straggler_time: float, seconds: float) -> None:
    assert interval(age, straggler_time) == seconds


def test_the_first_agent_names_a_slow_rank_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = directory.Attempt(directory.Run(tmp_path), 0)
    attempt.path.mkdir(parents=True)
    plan = bare_plan(train={"straggler_time": 20, "straggler_factor": 1.5})
    rendezvous = Rendezvous("", 0, tuple(Member(i, i, f"node{i}", 2) for i in range(2)), None)
    events: list[kinds.SlowRank] = []
    sent: list[dict[str, Any]] = []
    agents = [
        Paces(plan, attempt, events.append, rendezvous, index, 0)  # type: ignore[arg-type]
        for index in range(2)
    ]
    now, wall = time.monotonic(), 1000.0
    monkeypatch.setattr(rank_status.time, "time", lambda: wall)
    for number in range(1, 12):
        now, wall = now + 5, wall + 5
        for index in (1, 0):
            if told := agents[index].look([(0.1, number), (0.3 if index else 0.1, number)], now):
                sent.append(told)
        agents[0].judge(sent)
        sent.clear()
    (event,) = events
    assert (event.rank, event.host, event.ratio) == (3, "node1", 3.0)
    assert capsys.readouterr().err.startswith("launcher: rank 3 on node1 needs 3.0 times the others' time (since ")
    written = attempt.paces()
    assert {(each["host"], each["rank"]) for each in written} == {("node0", 0), ("node1", 2)}
    assert next(each for each in written if each["rank"] == 2)["seconds"] == [0.1, 0.3]


def test_of_a_long_file_of_paces_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = directory.Attempt(directory.Run(tmp_path), 0)
    (attempt.path / "pace").mkdir(parents=True)
    for number in range(100):
        pace = kinds.Pace(round=number, rank=0, host="node1", seconds=(0.1,))
        event_file.append(attempt.path / "pace" / "member-0.jsonl", pace)
    assert len(attempt.paces()) == 100
    monkeypatch.setattr(directory, "_PACE_TAIL", 1000)
    numbers = [event["round"] for event in attempt.paces()]
    monkeypatch.setattr(directory, "_PACE_TAIL", 1 << 18)
    monkeypatch.setattr(directory, "_PACE_TAILS", 1000)  # the same of one file, or less of each of many
    assert [event["round"] for event in attempt.paces()] == numbers
    assert 0 < len(numbers) < 20 and numbers == list(range(100 - len(numbers), 100))
