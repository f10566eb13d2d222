"""The states of points that pilots run, and what pilots do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launcher.monitoring.run_status import of_point
from launcher.monitoring.sweep_status import point_statuses
from launcher.runs import point_claims
from launcher.runs.events import ManagerBegan, ManagerEnded
from launcher.runs.point_claims import CLAIMS, Claims, ClaimsReader, EntryKind, Manager
from launcher.schedulers.base import JobState
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
    for minutes, state in ((4, "running"), (6, "waiting")):  # the clock of this machine may be minutes ahead
        os.utime(folder.journal(A), (time.time() - 60 * minutes,) * 2)
        assert point_statuses(sweep)[0].state == state


def test_a_claim_in_the_moment_of_a_listing_is_seen_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a folder may be that of before, if two changes come within a tick of the kernel."""
    sweep, clock = packed_sweep(tmp_path, 2), Clock(monkeypatch, point_claims)
    reader, folder = ClaimsReader(), Claims(sweep.path, 0)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    times = (sweep.path / CLAIMS).stat()
    assert set(reader.of(sweep, PACKING).logs) == {0}
    folder.add(1, 0, EntryKind.CLAIMED, A)
    os.utime(sweep.path / CLAIMS, ns=(times.st_atime_ns, times.st_mtime_ns))
    clock.now += 3.0
    assert set(reader.of(sweep, PACKING).logs) == {0, 1}


def test_claims_that_have_not_changed_are_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, clock = packed_sweep(tmp_path, 2), Clock(monkeypatch, point_claims)
    reader, folder = ClaimsReader(), Claims(sweep.path, 0)
    folder.add(0, 0, EntryKind.CLAIMED, A)
    for _ in range(2):
        reader.of(sweep, PACKING)
        clock.now += 3.0
    monkeypatch.setattr(Claims, "logs", None)
    assert set(reader.of(sweep, PACKING).logs) == {0}


def test_of_one_point_its_own_claims_and_its_own_manager_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = packed_sweep(tmp_path, 5)
    folder, seen = Claims(sweep.path, 0), list[Manager]()
    managers = [Manager(0, 0, 0, slot) for slot in range(9)]
    for each in managers:
        folder.note(each, BEGAN)
    for point, each in enumerate(managers[:4]):
        folder.add(point, 0, EntryKind.CLAIMED, each)
    folder.add(1, 1, EntryKind.DONE, managers[1])
    folder.note(managers[2], ManagerEnded())
    os.utime(folder.journal(managers[3]), (1, 1))
    read = Claims.seen
    monkeypatch.setattr(Claims, "seen", lambda self, each: [seen.append(each), read(self, each)][1])
    monkeypatch.setattr(Claims, "logs", None)
    reader = ClaimsReader()
    states = [of_point(sweep.run(point), reader) for point in range(5)]
    assert states == [JobState.RUNNING, None, JobState.PENDING, JobState.PENDING, JobState.PENDING]
    assert seen == [managers[0], managers[2], managers[3]]
