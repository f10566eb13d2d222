"""The states of points that pilots run, and what pilots do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.monitoring.sweep import PilotActivity, activity, point_statuses
from launcher.runs import claims
from launcher.runs.claims import CLAIMS, Boards, Claims, ClaimsBoard, EntryKind, Manager, PointLog, State
from launcher.runs.events import ManagerBegan, ManagerEnded, PointBegan, PointEnded
from tests.unit.clock import Clock
from tests.unit.pilots.managers import PACKING, packed_sweep

A = Manager(0, 0, 0, 0)
BEGAN = ManagerBegan(host="node1", job="1", slots=2, pid=1, start=1, namespace="", time=100.0)


def test_points_are_what_their_logs_say(tmp_path: Path) -> None:
    sweep = packed_sweep(tmp_path, 7)
    folder = Claims(sweep.path, 0)
    folder.note(A, BEGAN)
    ends = [EntryKind.DONE, EntryKind.FAILED, EntryKind.CANCELLED, EntryKind.RELEASED, EntryKind.PRUNED, None]
    for point, end in enumerate(ends):
        folder.add(point, 0, EntryKind.CLAIMED, A)
        if end is not None:
            folder.add(point, 1, end, A)
    found = ["done", "failed", "cancelled", "waiting", "pruned", "running", "waiting"]
    assert [each.state for each in point_statuses(sweep)] == found
    folder.note(A, ManagerEnded())
    assert point_statuses(sweep)[5].state == "waiting"
    sweep.mark_cancelled(True)
    assert [each.state for each in point_statuses(sweep)[3:]] == ["cancelled", "pruned", "cancelled", "cancelled"]


def test_the_point_of_a_manager_without_a_heartbeat_waits(tmp_path: Path) -> None:
    sweep = packed_sweep(tmp_path, 1)
    folder = Claims(sweep.path, 0)
    folder.note(A, BEGAN)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    assert point_statuses(sweep)[0].state == "running"
    os.utime(folder.journal(A), (1, 1))
    assert point_statuses(sweep)[0].state == "waiting"


def test_a_claim_in_the_moment_of_a_listing_is_seen_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a folder may be that of before, if two changes come within a tick of the kernel."""
    sweep, clock = packed_sweep(tmp_path, 2), Clock(monkeypatch, claims)
    boards, folder = Boards(), Claims(sweep.path, 0)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    times = (sweep.path / CLAIMS).stat()
    assert set(boards.of(sweep, PACKING).logs) == {0}
    folder.add(1, 0, EntryKind.CLAIMED, A)
    os.utime(sweep.path / CLAIMS, ns=(times.st_atime_ns, times.st_mtime_ns))
    clock.now += 3.0
    assert set(boards.of(sweep, PACKING).logs) == {0, 1}


def test_claims_that_have_not_changed_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, clock = packed_sweep(tmp_path, 2), Clock(monkeypatch, claims)
    boards, folder = Boards(), Claims(sweep.path, 0)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    for _ in range(2):
        boards.of(sweep, PACKING)
        clock.now += 3.0
    monkeypatch.setattr(Claims, "logs", None)
    assert set(boards.of(sweep, PACKING).logs) == {0}


def held(*points: int) -> dict[int, PointLog]:
    return {point: PointLog(State.HELD, A, 1, begun=True) for point in points}


def test_the_activity_of_pilots() -> None:
    """One slot of two is busy from 100 to 110 s, and the other one until now, which is 120 s."""
    events = [
        BEGAN, PointBegan(point=0, slot=0, time=100.0), PointBegan(point=1, slot=1, time=100.0),
        PointEnded(point=0, slot=0, code=0, kind="done", time=110.0),
    ]  # fmt: skip
    logs = {**held(1), 0: PointLog(State.DONE, None, 2, begun=True)}
    found = activity(ClaimsBoard(logs, frozenset([A])), {A: events}, 4, now=120.0)
    assert found == PilotActivity(slots=2, busy=1, share=0.75, rate=0.05, left=60.0)
    assert activity(ClaimsBoard({}, frozenset()), {}, 4, now=120.0) == PilotActivity()
