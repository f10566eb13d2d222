"""What events tell: preflights in lines, and ranks that are slower than the others."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import Train
from launcher.errors import ConfigError
from launcher.failures.codes import PreflightThen
from launcher.runs import event_file
from launcher.runs.events import NodeFinding, Observation, Preflighted
from launcher.runs.health import Straggler, StragglerSearch, _median_without, preflight_lines, remarks, stragglers
from tests.unit.plans import plan_of

FACTOR, PATIENCE = 1.5, 60.0
FAST, SLOW = 0.1, 0.2


def pace(time: float, rank: int, *seconds: float | None, round_number: int = 0) -> dict[str, Any]:
    """What the agent whose first rank this is told; two ranks a node."""
    return {
        "time": time, "event": "pace", "round": round_number, "host": f"node{rank // 2 + 1}", "rank": rank,
        "seconds": list(seconds),
    }  # fmt: skip


def told(*series: list[float | None], step: float = 10.0, **changes: Any) -> list[dict[str, Any]]:
    """Events of nodes of one rank each: the times of each rank, one every `step` seconds."""
    return [
        {**pace(number * step, 2 * rank, value, **changes), "rank": rank}
        for number, values in enumerate(zip(*series, strict=True))
        for rank, value in enumerate(values)
    ]


def ranks(found: list[Straggler]) -> list[tuple[int, float, float | None]]:
    return [(each.rank, each.since, each.until) for each in found]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([[FAST] * 8, [FAST] * 8, [FAST] * 8], []),
        ([[FAST] * 8, [FAST] * 8, [SLOW] * 8], [(2, 0.0, None)]),
        ([[FAST] * 8, [SLOW] * 8], [(1, 0.0, None)]),  # of two, against the other one
        ([[FAST] * 8, [FAST] * 8, [SLOW] * 6 + [FAST] * 2], []),  # 50 s
        ([[FAST] * 9, [FAST] * 9, [SLOW] * 7 + [FAST] * 2], [(2, 0.0, 60.0)]),
        ([[FAST] * 9, [FAST] * 9, [FAST] * 2 + [SLOW] * 7], [(2, 20.0, None)]),
        ([[FAST] * 9, [FAST] * 9, [SLOW] * 3 + [FAST] + [SLOW] * 5], [(2, 0.0, None)]),  # one word is no end of it
        ([[FAST] * 9, [FAST] * 9, [SLOW, FAST] * 4 + [SLOW]], [(2, 0.0, None)]),
        ([[FAST] * 9, [FAST] * 9, [SLOW, FAST, FAST] * 3], []),
        ([[FAST] * 8, [FAST] * 8, [0.149] * 8], []),  # less than the factor
        ([[FAST] * 8, [SLOW] * 8, [SLOW] * 8], []),  # a fast one makes no slow ones
        ([[0.0003] * 8, [0.0003] * 8, [0.0007] * 8], []),  # too short to tell
        ([[SLOW] * 8], []),  # alone
        ([[FAST] * 8, [FAST] * 8, [FAST] * 8, [SLOW] * 8, [SLOW] * 8], [(3, 0.0, None), (4, 0.0, None)]),
        ([[FAST] * 8, [FAST] * 8, [None] * 8], []),  # a rank that tells nothing
    ],
)
def test_a_rank_is_named_when_it_has_been_slow_for_long_enough(
    series: list[list[float | None]], expected: list[tuple[int, float, float | None]]
) -> None:
    assert ranks(stragglers(told(*series), FACTOR, PATIENCE)) == expected


def test_an_agent_tells_of_all_its_ranks() -> None:
    events = [pace(10.0 * n, rank, FAST, SLOW if rank == 2 else None) for n in range(8) for rank in (0, 2)]
    (found,) = stragglers(events, FACTOR, PATIENCE)
    assert found == Straggler(3, "node2", 2.0, 0.0)


def test_a_new_round_begins_anew() -> None:
    before = told([FAST] * 5, [FAST] * 5, [SLOW] * 5)
    again = told([FAST] * 5, [FAST] * 5, [SLOW] * 5, round_number=1)
    after = [{**event, "time": event["time"] + 50} for event in again]
    assert stragglers([*before, *after], FACTOR, PATIENCE) == []
    assert ranks(stragglers([*before, *after], FACTOR, 30)) == [(2, 0.0, 40.0), (2, 50.0, None)]
    assert ranks(stragglers([*after, *before], FACTOR, 30)) == [(2, 50.0, None)]  # words of a round that is over


def test_what_was_told_long_ago_does_not_count() -> None:
    alone = [pace(0.0, 0, FAST), *(pace(400.0 + 10 * number, 2, SLOW) for number in range(8))]
    assert stragglers(alone, FACTOR, PATIENCE) == []
    long_steps = [pace(0.0, 0, 200.0), *(pace(400.0 + 10 * number, 2, 400.0) for number in range(8))]
    assert ranks(stragglers(long_steps, FACTOR, PATIENCE)) == [(2, 400.0, None)]


def test_a_run_that_is_over_has_no_one_who_still_is_slow() -> None:
    (found,) = stragglers(told([FAST] * 8, [SLOW] * 8), FACTOR, PATIENCE, over=True)
    assert found.until == 70.0


class Counted(float):
    """A step time that counts how often step times are looked at."""

    operations = 0

    def __rmul__(self, other: float) -> float:
        Counted.operations += 1
        return float(self) * other


def operations_per_report(world_size: int) -> float:
    """Two reports of each rank of nodes with 8 ranks, one of them slow in both."""
    Counted.operations, slow_rank = 0, world_size // 2 + 3
    search = StragglerSearch(FACTOR, 5.0)
    found = [
        each.rank
        for number in range(2)
        for first in range(0, world_size, 8)
        for each in search.add({
            "event": "pace", "round": 0, "rank": first, "host": "node", "time": 10.0 * number + first / world_size,
            "seconds": [Counted(SLOW if first + place == slow_rank else FAST + place / 1e4) for place in range(8)],
        })
    ]  # fmt: skip
    assert found == [slow_rank]
    return Counted.operations / (2 * world_size)


def test_the_work_per_report_does_not_grow_with_the_number_of_ranks() -> None:
    assert operations_per_report(32768) < 1.5 * operations_per_report(3272)


def test_other_events_are_passed_over() -> None:
    assert stragglers([{"event": "met", "time": 0.0}], FACTOR, PATIENCE) == []


def test_a_straggler_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    assert Straggler(3, "node2", 1.8, 43380.0).words == "rank 3 on node2 needs 1.8 times the others' time (since 12:03)"
    assert Straggler(3, "node2", 1.8, 43380.0, 44000.0).words == (
        "rank 3 on node2 needed 1.8 times the others' time (from 12:03 to 12:13)"
    )


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), min_size=2, max_size=9), st.data())
def test_the_median_of_the_others(values: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    others = values[:place] + values[place + 1 :]
    assert _median_without(sorted(values), values[place]) == pytest.approx(statistics.median(others))


LOW_TEXT = "/x has 1 MiB free: free some, or set TMPDIR to another file system"
LOW = Observation(LOW_TEXT)
BAD = [NodeFinding("node3 (node 2)", "node3", "space", LOW)]


@pytest.mark.parametrize(
    ("then", "bad", "warnings", "lines"),
    [
        ("go", [], [], ["preflight: 4 nodes fine in 1.2 s"]),
        (
            "go", [], [NodeFinding("node1", "node1", "space", LOW)],
            ["preflight: 4 nodes fine in 1.2 s", f"preflight: warning: node1: {LOW_TEXT}"],
        ),
        ("without", BAD, [], [f"preflight: node3 (node 2) is left out: {LOW_TEXT}"]),
        ("fail", BAD, [], [f"preflight: node3 (node 2): {LOW_TEXT}"]),
    ],
)  # fmt: skip
def test_a_preflight_in_lines(then: str, bad: Any, warnings: Any, lines: list[str]) -> None:
    event = Preflighted(
        round=0, then=PreflightThen(then), nodes=4, bad=tuple(bad), warnings=tuple(warnings), seconds=1.23
    )
    assert preflight_lines(event) == lines
    assert remarks([{"event": "met"}, event_file.entry(event)]) == lines


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (Train(straggler_factor=1.0), "train.straggler_factor=1: it must be more than 1"),
        (Train(straggler_factor=float("nan")), "train.straggler_factor=nan: it must be more than 1"),
        (Train(straggler_time="soon"), "train.straggler_time: 'soon' is not a time"),
    ],
)
def test_keys_that_name_nobody_are_refused(train: Train, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_of(train=train)


def test_the_keys_are_in_the_plan() -> None:
    plan = plan_of(train=Train(straggler_factor=2.0, straggler_time="5m"), preflight=True)
    assert (plan.train.straggler_factor, plan.train.straggler_time, plan.preflight) == (2.0, 300, True)
    assert not plan_of().preflight
