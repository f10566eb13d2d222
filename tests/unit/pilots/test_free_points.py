"""What a slot manager claims while others do."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.pilots.manager import FreePoints
from launcher.processes import Process, namespace
from launcher.runs.events import ManagerBegan, ManagerEnded
from launcher.runs.point_claims import Claims, EntryKind, Manager, State
from tests.unit.faults import FileServer

A, B = Manager(0, 0, 0, 0), Manager(1, 0, 0, 0)
LEASE = 90.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Claims:
    Claims.create(tmp_path)
    return Claims(tmp_path, retries=1)


def free_points(folder: Claims, manager: Manager, clock: Clock, host: str = "a", count: int = 4) -> FreePoints:
    begin(folder, manager, host)
    return FreePoints(folder, count, manager, host, LEASE, clock)


def begin(folder: Claims, manager: Manager, host: str, pid: int = 0, start: int = 0, slots: int = 1) -> None:
    where = namespace() if pid else "x"
    folder.note(manager, ManagerBegan(host=host, job="1", slots=slots, pid=pid, start=start, namespace=where))


def claimed(free_points: FreePoints) -> list[int]:
    found = []
    while (each := free_points.claim()) is not None:
        found.append(each[0])
    return found


def test_two_managers_share_all_points(folder: Claims) -> None:
    clock = Clock()
    one, two = free_points(folder, A, clock), free_points(folder, B, clock, "b")
    found: dict[str, list[int]] = {"one": [], "two": []}
    for _ in range(3):
        clock.now += 10
        for name, each in (("one", one), ("two", two)):
            if (claim := each.claim()) is not None:
                found[name].append(claim[0])
    assert sorted(found["one"] + found["two"]) == [0, 1, 2, 3]
    assert abs(len(found["one"]) - len(found["two"])) <= 1


def test_the_points_of_a_silent_manager_are_taken_over_after_the_lease(folder: Claims) -> None:
    clock = Clock()
    two = free_points(folder, B, clock, "b", count=1)
    begin(folder, A, "a")
    folder.add(0, 0, EntryKind.CLAIMED, A)
    assert claimed(two) == []
    clock.now = LEASE - 1
    os.utime(folder.journal(A), (1, 1))
    assert claimed(two) == []
    clock.now = 2 * LEASE - 2
    assert claimed(two) == []
    clock.now = 2 * LEASE + 10
    assert claimed(two) == [0]


def test_the_points_of_a_manager_without_a_journal_are_taken_over_after_the_lease(folder: Claims) -> None:
    """The disk was full when it began, and it was killed before its next event."""
    clock = Clock()
    two = free_points(folder, B, clock, "b", count=1)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    assert claimed(two) == []
    clock.now = LEASE - 1
    assert claimed(two) == []
    clock.now = LEASE + 10
    assert claimed(two) == [0]


def test_the_points_of_a_process_that_is_gone_are_taken_over_at_once(folder: Claims) -> None:
    clock, mine = Clock(), Process.of(os.getpid())
    two = free_points(folder, B, clock, mine.host, count=2)
    begin(folder, A, mine.host, mine.pid, mine.start)
    gone = Manager(0, 0, 0, 1)
    begin(folder, gone, mine.host, mine.pid, mine.start + 1)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    folder.add(1, 0, EntryKind.CLAIMED, gone)
    assert claimed(two) == [1]


def test_the_points_of_an_earlier_attempt_and_of_a_manager_that_ended_are_taken_over_at_once(folder: Claims) -> None:
    clock = Clock()
    begin(folder, A, "a")
    begin(folder, B, "b")
    folder.add(0, 0, EntryKind.CLAIMED, A)
    folder.add(1, 0, EntryKind.CLAIMED, B)
    folder.note(B, ManagerEnded())
    again = free_points(folder, Manager(0, 1, 0, 0), clock, "c", count=2)
    assert claimed(again) == [0, 1]


def test_a_failed_point_is_retried_elsewhere_and_then_has_failed(folder: Claims) -> None:
    clock = Clock()
    one, two = free_points(folder, A, clock, count=1), free_points(folder, B, clock, "b", count=1)
    assert claimed(one) == [0]
    folder.add(0, 1, EntryKind.FAILED, A)
    clock.now += 10
    assert claimed(one) == []
    assert claimed(two) == [0]
    folder.add(0, 3, EntryKind.FAILED, B)
    clock.now += 10
    assert claimed(one) == claimed(two) == []
    assert one.over
    assert one.logs[0].state is State.FAILED


def test_a_point_was_done_elsewhere(folder: Claims) -> None:
    clock = Clock()
    one = free_points(folder, A, clock, count=2)
    begin(folder, B, "b")
    one.look()
    assert not one.others_done
    folder.add(0, 0, EntryKind.CLAIMED, B)
    folder.add(0, 1, EntryKind.DONE, B)
    clock.now += 10
    one.look()
    assert one.others_done


def test_a_process_that_cannot_be_looked_at_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a free file descriptor reads nothing in /proc."""
    process = Process.of(os.getpid())
    assert process.alive()
    server = FileServer(monkeypatch)
    server.fail(f"/proc/{process.pid}/stat", number=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        process.alive()
    server.fail(f"/proc/{process.pid}/stat", number=errno.EACCES)  # its id is that of another user's process now
    assert not process.alive()
