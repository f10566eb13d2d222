"""A slot manager takes points, records how they end, and leaves when nothing is left for it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from launcher.agent.leader_connection import Signals
from launcher.errors import RESUME, ConfigError, UnavailableError
from launcher.failures.messages import of_fault
from launcher.pilots import manager
from launcher.pilots.manager import FreePoints, SlotManager
from launcher.runs import event_files
from launcher.runs.directory import Run
from launcher.runs.events import Event, Fault, ManagerEnded, ManagerIdle, NodeLeftOut, PointEnded, Progress, known
from launcher.runs.history import read_history
from launcher.runs.point_claims import Claims, EntryKind, Manager, State
from launcher.runs.sweep_directory import Sweep, TrialState
from tests.unit.pilots.managers import Points, packed_sweep, slot_manager
from tests.unit.plans import plan_of


def states(sweep: Sweep, retries: int = 0) -> Mapping[int, State]:
    return {point: log.state for point, log in sorted(Claims(sweep.path, retries).logs().items())}


def test_every_point_is_run_once_and_its_end_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, points = packed_sweep(tmp_path, 4, slots=2), Points({1: 1, 2: 93})
    assert slot_manager(sweep, points, monkeypatch).run() == {"points": 4, "done": 2}
    assert sorted(points.started) == [0, 1, 2, 3]
    assert states(sweep) == {0: State.DONE, 1: State.FAILED, 2: State.FAILED, 3: State.DONE}


def test_the_last_progress_of_a_pilot_is_that_all_points_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the points are: `status` would show a pilot that is done at 0 %."""
    sweep = packed_sweep(tmp_path, 3)
    slot_manager(sweep, Points({}), monkeypatch).run()
    events = [*known(event_files.read(sweep.pilot(0).attempts()[0].events_file("rank-0")))]
    told = [event for event in events if isinstance(event, Progress)]
    assert (told[-1].step, told[-1].total) == (3, 3)


def test_a_point_that_fails_is_retried_and_one_that_would_fail_again_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, points = packed_sweep(tmp_path, 3, retries=2), Points({1: 1, 2: 93})
    slot_manager(sweep, points, monkeypatch).run()
    assert [points.started.count(point) for point in range(3)] == [1, 3, 1]
    assert states(sweep, 2)[1] is State.FAILED


def test_points_that_run_show_it_to_runs_that_wait_for_their_checkpoint_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = packed_sweep(tmp_path, 1)
    lease = sweep.run(0).path / "lease"

    def before(_: int) -> None:
        lease.write_text("7 0 node0\n")
        os.utime(lease, (0, 0))
        mine._next_beat = 0.0

    points = Points({0: None}, before)
    managed, turns = slot_manager(sweep, points, monkeypatch), iter(range(100))
    mine, wait = managed.manager, managed.manager._wait

    def one_turn() -> None:
        if mine._running and (lease.stat().st_mtime or next(turns, None) is None):
            os.kill(next(iter(mine._running)), signal.SIGKILL)
        wait()

    monkeypatch.setattr(mine, "_wait", one_turn)
    managed.run()
    assert lease.stat().st_mtime > 0


def test_a_stopped_manager_releases_its_points_and_its_pilot_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = Signals()
    points = Points({0: RESUME}, before=lambda point: signals._take(signal.SIGTERM, None))
    sweep = packed_sweep(tmp_path, 3)
    with pytest.raises(SystemExit) as left:
        slot_manager(sweep, points, monkeypatch, signals=signals).run()
    assert left.value.code == RESUME
    assert points.started == [0]
    assert states(sweep) == {0: State.FREE}
    again = Points({})
    slot_manager(sweep, again, monkeypatch, attempt=1).run()
    assert again.started[0] == 0  # it is the furthest
    assert states(sweep) == dict.fromkeys(range(3), State.DONE)


def test_the_points_of_an_earlier_attempt_go_on_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, points = packed_sweep(tmp_path, 2), Points({})
    Claims(sweep.path, 0).add(1, 0, EntryKind.CLAIMED, Manager(0, 0, 0, 0))
    Claims(sweep.path, 0).journal(Manager(0, 0, 0, 0)).touch()
    slot_manager(sweep, points, monkeypatch, attempt=1).run()
    assert points.started == [1, 0]


@pytest.mark.parametrize(
    ("holder", "taken_over"),
    [
        (Manager(0, 0, 0, 1), True),  # of the same pilot
        (Manager(1, 0, 0, 0), True),  # silent for more than two heartbeats
        (Manager(2, 0, 0, 0), False),
    ],
)
def test_an_idle_manager_does_not_leave_before_it_could_take_over_the_points_of_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Manager, taken_over: bool
) -> None:
    sweep, points = packed_sweep(tmp_path, 2), Points({})
    monkeypatch.setattr(manager, "IDLE", 0.3)
    monkeypatch.setattr(manager, "LATEST", 0.1)
    folder, beats = Claims(sweep.path, 0), Claims.sign
    folder.add(1, 0, EntryKind.CLAIMED, holder)
    folder.journal(holder).touch()
    if not taken_over:
        monkeypatch.setattr(Claims, "sign", lambda *_: (folder.beat(holder), beats(folder, holder))[1])
    mine = slot_manager(sweep, points, monkeypatch)
    mine.manager._free_points._lease = 0.6  # not that by which its own heartbeats may be late on a busy machine
    mine.run()
    assert points.started == ([0, 1] if taken_over else [0])


def test_a_cancelled_sweep_begins_no_more_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = packed_sweep(tmp_path, 3)
    sweep.mark_cancelled(True)
    points = Points({})
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == []


def test_a_point_that_was_cancelled_before_it_began_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, points = packed_sweep(tmp_path, 3), Points({})
    sweep.run(1).mark("cancelled")
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == [0, 2]
    assert states(sweep)[1] is State.CANCELLED


def test_a_node_on_which_several_points_fail_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreePoints, "others_done", property(lambda _: True, lambda *_: None), raising=False)
    sweep, points = packed_sweep(tmp_path, 9), Points(dict.fromkeys(range(1, 9), 1))
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == [0, 1, 2, 3]
    events = list(known(event_files.read(Claims(sweep.path, 0).journal(Manager(0, 0, 0, 0)))))
    assert [event.points for event in events if isinstance(event, NodeLeftOut)] == [(1, 2, 3)]
    assert sum(isinstance(event, PointEnded) for event in events) == 4


def test_an_end_does_not_count_if_the_point_was_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, other = packed_sweep(tmp_path, 1), Manager(1, 0, 0, 0)
    folder = Claims(sweep.path, 0)

    def overtake(point: int) -> None:
        folder.add(point, 1, EntryKind.CLAIMED, other)
        folder.add(point, 2, EntryKind.DONE, other)

    slot_manager(sweep, Points({0: 1}, before=overtake), monkeypatch).run()
    assert folder.logs()[0].last == other
    assert states(sweep) == {0: State.DONE}


class Search:
    """Chooses `most` points, and prunes those that it is told to.

    Attributes:
        ends: of points, in order.
    """

    def __init__(self, sweep: Sweep, pruned: set[int], most: int = 4) -> None:
        self._sweep, self._pruned, self._count, self.ends = sweep, pruned, 0, list[tuple[int, TrialState]]()
        self.most = most

    def count(self) -> int:
        return self._count

    def more(self, *, now: bool = False) -> bool:
        more = self._count < self.most
        self._count += more
        return more

    def made(self, number: int) -> Run:
        return self._sweep.run(number)

    def to_prune(self, number: int) -> bool:
        return number in self._pruned

    def ended(self, number: int, outcome: TrialState) -> None:
        self.ends.append((number, outcome))


def test_a_search_chooses_points_while_slots_are_free_and_prunes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, points = packed_sweep(tmp_path, 4, slots=2, retries=1), Points({1: None, 2: 1})
    search = Search(sweep, pruned={1})
    monkeypatch.setattr(manager, "_search_of", lambda sweep, waiting: search)
    monkeypatch.setattr(manager, "LOOK", 0.0)
    slot_manager(sweep, points, monkeypatch).run()
    assert [points.started.count(point) for point in range(4)] == [1, 1, 2, 1]
    assert states(sweep, 1) == {0: State.DONE, 1: State.PRUNED, 2: State.FAILED, 3: State.DONE}
    assert sorted(search.ends, key=lambda end: end[0]) == [
        (0, TrialState.COMPLETE), (1, TrialState.PRUNED), (2, TrialState.FAIL), (3, TrialState.COMPLETE)
    ]  # fmt: skip


def test_a_manager_that_is_about_to_leave_sees_that_its_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that raises the budget submits no pilot in place of one that is not idle."""
    sweep, points, note = packed_sweep(tmp_path, 5), Points({}), Claims.note
    search = Search(sweep, pruned=set(), most=4)

    def raised(claims: Claims, manager: Manager, event: Event) -> None:
        if isinstance(event, ManagerIdle):
            search.most = 5
        note(claims, manager, event)

    monkeypatch.setattr(Claims, "note", raised)
    monkeypatch.setattr(manager, "_search_of", lambda sweep, waiting: search)
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_node_without_room_for_a_process_does_not_use_up_the_attempts_of_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(point: int) -> None:
        raise OSError(number, os.strerror(number))

    signals, turns = Signals(), iter(range(50))

    def wait(manager: SlotManager) -> None:
        if next(turns, None) is None:
            signals._take(signal.SIGTERM, None)

    monkeypatch.setattr(SlotManager, "_wait", wait)
    sweep, points = packed_sweep(tmp_path, 3, slots=2), Points({}, before=refuse)
    with pytest.raises(SystemExit):
        slot_manager(sweep, points, monkeypatch, signals=signals).run()
    assert points.started == [0]
    assert Claims(sweep.path, 0).logs()[0].releases == 1


def test_the_end_of_a_point_is_recorded_when_the_file_server_responds_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, failures = os.link, [errno.EIO, errno.ESTALE]

    def failing(source: Path, target: Path) -> None:
        if target.name == "0.1" and failures:
            raise OSError(failures.pop(), "not now")
        link(source, target)

    monkeypatch.setattr(os, "link", failing)
    monkeypatch.setattr(manager, "LOOK", 0.0)
    sweep, points = packed_sweep(tmp_path, 2), Points({})
    assert slot_manager(sweep, points, monkeypatch).run() == {"points": 2, "done": 2}
    assert points.started == [0, 1]
    assert not failures


def test_a_manager_that_waits_for_the_lock_of_a_search_sends_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Callable[[], None]] = []
    sweep = packed_sweep(tmp_path, 1)
    monkeypatch.setattr(manager, "_search_of", lambda sweep, waiting: found.append(waiting))
    each = slot_manager(sweep, Points({}), monkeypatch).manager
    journal = each._claims.journal(each._mine)
    journal.touch()
    os.utime(journal, (0, 0))
    found[0]()
    assert journal.stat().st_mtime > 0


def test_a_point_whose_folder_cannot_be_read_now_ends_no_pilot_and_is_tried_again_when_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, points, has, failures = packed_sweep(tmp_path, 4), Points({}), Run.has, [1, 2]

    def failing(run: Run, name: str) -> bool:
        if name == "cancelled" and run.path.name == "1" and failures:
            raise UnavailableError(f"not now: {failures.pop()}")
        return has(run, name)

    monkeypatch.setattr(Run, "has", failing)
    monkeypatch.setattr(manager, "PAUSE", 0.0)
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == [0, 2, 3, 1]
    assert states(sweep) == dict.fromkeys(range(4), State.DONE)


def test_a_point_whose_folder_cannot_be_made_fails_and_ends_no_pilot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, points = packed_sweep(tmp_path, 4), Points({})
    search = Search(sweep, pruned=set())

    def made(number: int) -> Run:
        if number == 1:
            raise ConfigError("it is there already")
        return sweep.run(number)

    monkeypatch.setattr(search, "made", made)
    monkeypatch.setattr(manager, "_search_of", lambda sweep, waiting: search)
    monkeypatch.setattr(manager, "PAUSE", 0.0)
    slot_manager(sweep, points, monkeypatch).run()
    assert points.started == [0, 2, 3]
    assert states(sweep) == {0: State.DONE, 1: State.FAILED, 2: State.DONE, 3: State.DONE}


def test_a_point_that_ends_its_managers_comes_last_and_has_as_many_attempts_as_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take more memory than there is: then the kernel or the scheduler kills the whole pilot."""
    sweep, most = packed_sweep(tmp_path, 3), plan_of().resume.max_attempts
    folder = Claims(sweep.path, 0)
    for attempt in range(most - 1):
        assert folder.add(0, attempt, EntryKind.CLAIMED, Manager(0, attempt, 0, 0))
        folder.note(Manager(0, attempt, 0, 0), ManagerEnded())
    points = Points({0: RESUME})
    slot_manager(sweep, points, monkeypatch, attempt=most).run()
    assert points.started == [1, 2, 0]
    assert states(sweep) == {0: State.FAILED, 1: State.DONE, 2: State.DONE}


def test_a_point_that_has_ended_as_many_managers_as_it_may_have_attempts_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, most = packed_sweep(tmp_path, 2), plan_of().resume.max_attempts
    folder = Claims(sweep.path, 0)
    for attempt in range(most):
        assert folder.add(0, attempt, EntryKind.CLAIMED, Manager(0, attempt, 0, 0))
        folder.note(Manager(0, attempt, 0, 0), ManagerEnded())
    points = Points({})
    slot_manager(sweep, points, monkeypatch, attempt=most).run()
    assert points.started == [1]
    assert states(sweep) == {0: State.FAILED, 1: State.DONE}
    assert "its pilot or node was lost again" in of_fault(read_history(sweep.run(0)).fault or Fault())
    folder.add(0, folder.log(0).next, EntryKind.AGAIN, None)  # as `sweep rerun` does
    slot_manager(sweep, points, monkeypatch, attempt=most + 1).run()
    assert points.started == [1, 0]
