"""Members meet again after a fault: without the lost, with those who are back, and never in two halves."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launcher.node.rendezvous import Meeting, Member, RendezvousError
from launcher.node.rounds import AttemptOver, Overtaken, Rounds

from launcher import runs
from tests.unit.plans import plan_of

LOW = random.randrange(20000, 28000)


@pytest.fixture(autouse=True)
def quick_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture
def member(tmp_path: Path) -> Callable[..., Rounds]:
    """Makes the rounds of one of three members, two of which are enough."""
    attempt = runs.Attempt(runs.Run(tmp_path), 0)
    attempt.path.mkdir(parents=True)
    key = f"test/{random.randrange(2**60)}"

    def make(index: int, *, least: int = 2, heartbeat: int = 8) -> Rounds:
        plan = replace(
            plan_of(nodes=3, min_nodes=least), port_range=(LOW, LOW + 2000), rendezvous_timeout=30, heartbeat=heartbeat
        )
        names = [f"node{number}" for number in range(3)]
        return Rounds(
            plan, attempt, Member(index, index, names[index], 1), expected=names, hosts=["localhost"] * 3, key=key
        )

    return make


def together(*parts: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(parts)) as pool:
        futures = [pool.submit(part) for part in parts]
    return [future.exception() or future.result() for future in futures]


def indices(meeting: Meeting) -> list[int]:
    return [each.index for each in meeting.members]


def test_the_next_round_has_a_store_of_its_own(member: Callable[..., Rounds]) -> None:
    all_three = [member(index) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    first[0].store.set("word", "old")
    second = together(
        *(lambda each=each, old=old: each.next(1, old, ()) for each, old in zip(all_three, first, strict=True))
    )
    assert [indices(meeting) for meeting in second] == [[0, 1, 2]] * 3
    assert {meeting.port for meeting in second} != {first[0].port}
    assert not second[1].store.check(["word"])


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_member_is_done_without_also_the_first(member: Callable[..., Rounds], lost: int) -> None:
    all_three = [member(index) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    left = [index for index in range(3) if index != lost]
    second = together(*(lambda index=index: all_three[index].next(1, first[index], [lost]) for index in left))
    assert [indices(meeting) for meeting in second] == [left, left]


@pytest.mark.parametrize("lost", [0, 1])
def test_who_does_not_come_is_given_up(member: Callable[..., Rounds], lost: int) -> None:
    """Nobody knows yet that it is lost; if it is the master to be, the next one takes its place."""
    all_three = [member(index, heartbeat=10) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    left = [index for index in range(3) if index != lost]
    second = together(*(lambda index=index: all_three[index].next(1, first[index], ()) for index in left))
    assert [indices(meeting) for meeting in second] == [left, left], second


def test_too_few_do_not_go_on(member: Callable[..., Rounds]) -> None:
    all_three = [member(index, heartbeat=3) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    with pytest.raises(RendezvousError, match="node1, node2 did not reach node0 in time: 1 of 3 arrived"):
        all_three[0].next(1, first[0], ())
    with pytest.raises(RendezvousError, match="only node2 are left, and 2 are needed"):
        all_three[2].next(1, first[2], (0, 1))


def test_of_two_halves_one_goes_on(member: Callable[..., Rounds]) -> None:
    all_three = [member(index, least=1) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    assert indices(all_three[0].next(1, first[0], (1, 2))) == [0]
    others = together(*(lambda index=index: all_three[index].next(1, first[index], (0,)) for index in (1, 2)))
    assert [type(each) for each in others] == [Overtaken, Overtaken], others


def test_one_who_was_away_waits_and_is_let_in(member: Callable[..., Rounds]) -> None:
    all_three = [member(index) for index in range(3)]
    first = [meeting for _, meeting in together(*(each.first for each in all_three))]
    second = together(*(lambda index=index: all_three[index].next(1, first[index], (2,)) for index in (0, 1)))

    def go_on(index: int) -> Meeting:
        give_up = time.monotonic() + 30
        while all_three[index].waiting() != [2] and time.monotonic() < give_up:
            time.sleep(0.05)
        return all_three[index].next(2, second[index], ())

    third = together(lambda: go_on(0), lambda: go_on(1), lambda: all_three[2].join())
    assert [indices(meeting) for meeting in third[:2]] == [[0, 1, 2]] * 2, third
    number, meeting = third[2]
    assert (number, indices(meeting)) == (2, [0, 1, 2])
    assert all_three[0].waiting() == []


def test_one_who_waits_leaves_when_the_attempt_ends(member: Callable[..., Rounds], tmp_path: Path) -> None:
    two, late = [member(index) for index in (0, 1)], member(2, heartbeat=3)
    together(*(lambda each=each: each._meet(0, 0, (0, 1), 20) for each in two))
    timer = threading.Timer(0.5, lambda: runs.Attempt(runs.Run(tmp_path), 0).write_exit_code(0))
    timer.start()
    with pytest.raises(AttemptOver, match="it has ended"):
        late.first()
    timer.join()
