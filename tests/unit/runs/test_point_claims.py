"""The logs of a packed sweep's points: what they say, who may claim, and how entries are made."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.errors import RunError
from launcher.runs import point_claims
from launcher.runs.events import ManagerIdle
from launcher.runs.point_claims import Claims, EntryKind, LogEntry, Manager, PointLog, State

A, B, C = Manager(0, 0, 0, 0), Manager(1, 0, 0, 0), Manager(1, 0, 0, 1)


def log(*kinds: EntryKind) -> list[LogEntry]:
    return [LogEntry(kind, A) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ((), State.FREE),
        ((EntryKind.CLAIMED,), State.HELD),
        ((EntryKind.CLAIMED, EntryKind.RELEASED), State.FREE),
        ((EntryKind.CLAIMED, EntryKind.DONE), State.DONE),
        ((EntryKind.CLAIMED, EntryKind.PRUNED), State.PRUNED),
        ((EntryKind.CLAIMED, EntryKind.STOPPED), State.STOPPED),
        ((EntryKind.CLAIMED, EntryKind.STOPPED, EntryKind.AGAIN), State.FREE),
        ((EntryKind.CANCELLED,), State.CANCELLED),
        ((EntryKind.CLAIMED, EntryKind.FATAL), State.FAILED),
        ((EntryKind.CLAIMED, EntryKind.FAILED), State.FREE),
        ((EntryKind.CLAIMED, EntryKind.FAILED, EntryKind.CLAIMED, EntryKind.FAILED), State.FAILED),
        (
            (
                EntryKind.CLAIMED,
                EntryKind.FAILED,
                EntryKind.CLAIMED,
                EntryKind.FAILED,
                EntryKind.AGAIN,
                EntryKind.CLAIMED,
                EntryKind.FAILED,
            ),
            State.FREE,
        ),
        ((EntryKind.CLAIMED, EntryKind.CLAIMED), State.HELD),  # the first owner was dead
    ],
)
def test_a_log_says_what_a_point_is(kinds: Sequence[EntryKind], state: State) -> None:
    found = point_claims.fold(log(*kinds), retries=1)
    assert (found.state, found.next) == (state, len(kinds))


@given(st.lists(st.builds(LogEntry, st.sampled_from(EntryKind), st.sampled_from([A, B]))), st.integers(0, 3))
def test_a_point_is_held_exactly_if_its_last_entry_is_a_claim(entries: list[LogEntry], retries: int) -> None:
    found = point_claims.fold(entries, retries)
    held = bool(entries) and entries[-1].kind is EntryKind.CLAIMED
    assert (found.state is State.HELD) == held
    assert found.owner == (entries[-1].manager if held else None)


@pytest.mark.parametrize(
    ("owner", "mine", "alive", "unchanged", "may"),
    [
        (A, A, False, 90.0, False),
        (A, B, None, 89.0, False),
        (A, B, None, 90.0, True),
        (A, B, False, 0.0, True),
        (A, B, True, 90.0, False),  # it is suspended, perhaps, and its points are not
        (Manager(0, 0, 0, 0), Manager(0, 1, 0, 0), None, 0.0, True),
        (Manager(0, 1, 0, 0), Manager(0, 0, 0, 0), None, 0.0, False),
        (Manager(0, 0, 0, 1), Manager(0, 1, 0, 0), None, 0.0, True),
        (Manager(0, 0, 0, 1), Manager(0, 0, 1, 1), None, 0.0, False),
    ],
)
def test_who_may_take_a_point_over(
    owner: Manager, mine: Manager, alive: bool | None, unchanged: float, may: bool
) -> None:  # fmt: skip
    assert point_claims.may_take_over(owner, mine, alive, unchanged, lease=90.0) is may


FREE, HELD, DONE = PointLog(), PointLog(State.HELD, A, 1, begun=True), PointLog(State.DONE, None, 2, begun=True)
STOPPED = PointLog(State.FREE, None, 2, begun=True)


def failed(*managers: Manager) -> PointLog:
    return PointLog(State.FREE, None, 2, managers, begun=True)


HOSTS = {A: "a", B: "b", C: "c"}


def test_stopped_points_come_first_then_new_ones_then_those_that_failed_elsewhere() -> None:
    logs = {0: DONE, 1: failed(B), 2: STOPPED, 3: HELD, 5: HELD}
    assert point_claims.next_points(logs, 7, A, hosts=HOSTS, live=["a", "b"]) == [2, 4, 6, 1]
    assert point_claims.next_points(logs, 7, A, hosts=HOSTS, live=["a"], taken_over=[5]) == [2, 5, 4, 6, 1]


def test_a_point_is_retried_on_the_node_where_it_failed_only_if_there_is_no_other() -> None:
    logs = {0: failed(A)}
    assert point_claims.next_points(logs, 1, A, hosts=HOSTS, live=["a", "b"]) == []
    assert point_claims.next_points(logs, 1, B, hosts=HOSTS, live=["a", "b"]) == [0]
    assert point_claims.next_points(logs, 1, A, hosts=HOSTS, live=["a"]) == [0]
    assert point_claims.next_points({0: failed(A, B)}, 1, A, hosts=HOSTS, live=["a", "b"]) == [0]


@given(st.integers(0, 40), st.integers(1, 5), st.sets(st.integers(0, 39)))
def test_each_manager_is_offered_every_point_that_nobody_has_begun(count: int, managers: int, begun: set[int]) -> None:
    logs = dict.fromkeys(begun, HELD)
    orders = [point_claims.next_points(logs, count, A, part=(number, managers)) for number in range(managers)]
    assert all(sorted(order) == [p for p in range(count) if p not in begun] for order in orders)
    first = [order[0] for order in orders if order]
    assert begun or len(set(first)) == min(count, managers)


def outcomes(*kinds: EntryKind) -> list[tuple[int, EntryKind]]:
    return list(enumerate(kinds))


def test_a_node_is_left_out_when_several_points_fail_that_others_can_run() -> None:
    assert point_claims.left_out(outcomes(*[EntryKind.FAILED] * 3), others_done=True)
    assert not point_claims.left_out(outcomes(*[EntryKind.FAILED] * 3), others_done=False)
    assert not point_claims.left_out(outcomes(*[EntryKind.FAILED] * 2), others_done=True)
    assert not point_claims.left_out(
        outcomes(EntryKind.FAILED, EntryKind.FAILED, EntryKind.DONE, EntryKind.FAILED), others_done=True
    )
    assert not point_claims.left_out([(0, EntryKind.FAILED)] * 3, others_done=True)
    assert point_claims.left_out(
        outcomes(EntryKind.FAILED, EntryKind.RELEASED, EntryKind.FAILED, EntryKind.FAILED), others_done=True
    )


# -- the folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    Claims.create(tmp_path)
    return tmp_path


def test_of_two_managers_one_makes_an_entry(sweep: Path) -> None:
    one, two = Claims(sweep, 0), Claims(sweep, 0)
    assert one.add(7, 0, EntryKind.CLAIMED, A)
    assert not two.add(7, 0, EntryKind.CLAIMED, B)
    assert two.logs() == {7: PointLog(State.HELD, A, 1, begun=True, last=A)}
    assert two.add(7, 1, EntryKind.CLAIMED, B)
    assert not one.add(7, 1, EntryKind.DONE, A)  # it was believed dead: what it did does not count
    assert one.logs()[7].owner == B


def test_a_lost_answer_to_a_link_is_no_lost_claim(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        if target.name == "0.0":
            link(source, target)

    monkeypatch.setattr(os, "link", repeated)
    assert Claims(sweep, 0).add(0, 0, EntryKind.CLAIMED, A)
    assert not Claims(sweep, 0).add(0, 0, EntryKind.CLAIMED, None)


def test_a_manager_whose_listing_does_not_show_its_own_claim_does_not_claim_again(sweep: Path) -> None:
    """It would run the point twice at the same time, or once more after its end."""
    mine = Claims(sweep, 0)
    assert mine.add(0, 0, EntryKind.CLAIMED, A)
    assert not mine.add(0, 0, EntryKind.CLAIMED, A)


def test_the_user_starts_a_point_again(sweep: Path) -> None:
    mine = Claims(sweep, 0)
    for number, kind in enumerate((EntryKind.CLAIMED, EntryKind.FAILED)):
        assert mine.add(0, number, kind, A)
    assert mine.logs()[0].state is State.FAILED
    assert mine.add(0, 2, EntryKind.AGAIN, None)
    assert Claims(sweep, 0).logs()[0] == PointLog(State.FREE, None, 3, (), begun=True)


def test_a_mark_that_has_all_its_links_is_followed_by_another(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, made = os.link, dict[str, int]()

    def few(source: Path, target: Path) -> None:
        made[str(source)] = made.get(str(source), 0) + 1
        if made[str(source)] > 2 and not source.name.startswith("."):
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", few)
    mine = Claims(sweep, 0)
    assert all(mine.add(point, 0, EntryKind.CLAIMED, A) for point in range(7))
    assert {log.owner for log in Claims(sweep, 0).logs().values()} == {A}
    assert len(Claims(sweep, 0).logs()) == 7


def test_an_entry_with_another_inode_is_read(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Claims(sweep, 0)
    mine.add(3, 0, EntryKind.CLAIMED, A)
    entry = sweep / point_claims.CLAIMS / "3.0"
    text = entry.read_text()
    entry.unlink()
    entry.write_text(text)
    assert Claims(sweep, 0).logs()[3].owner == A


def test_a_log_that_is_listed_while_it_grows_ends_where_an_entry_is_missing(sweep: Path) -> None:
    mine = Claims(sweep, 0)
    for number, kind in enumerate((EntryKind.CLAIMED, EntryKind.RELEASED, EntryKind.CLAIMED)):
        mine.add(0, number, kind, A)
    (sweep / point_claims.CLAIMS / "0.1").unlink()
    found = Claims(sweep, 0).logs()[0]
    assert (found.state, found.next) == (State.HELD, 1)
    assert not mine.add(0, 2, EntryKind.CLAIMED, B)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(RunError, match="without hard links"):
        Claims.create(tmp_path)


def test_a_file_server_that_does_not_respond_is_not_one_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="Input/output error"):
        Claims.create(tmp_path)


def test_files_of_others_are_neither_entries_nor_managers(tmp_path: Path) -> None:
    """Somebody's notes, or marks of a newer version."""
    Claims.create(tmp_path)
    mine = Claims(tmp_path, 0)
    assert mine.add(0, 0, EntryKind.CLAIMED, A)
    mine.note(A, ManagerIdle())
    for name in ("notes.jsonl", "._0-0-0-0.jsonl", "0-0-0.jsonl"):
        (tmp_path / point_claims.MANAGERS / name).touch()
    for name in ("1.0", "0-0-0-0.paused", "notes.txt"):
        (tmp_path / point_claims.CLAIMS / name).write_text("0-0-0-0.paused")
    found = Claims(tmp_path, 0)
    assert found.managers() == [A]
    assert (found.logs()[0].owner, found.log(0).owner) == (A, A)
    assert not found.add(1, 0, EntryKind.CLAIMED, B)  # whatever it says, the entry is there


def test_names_that_are_no_entries_are_left_out(tmp_path: Path) -> None:
    """A number of 5,000 digits is none that int() takes; a name has 255 bytes at most on most file systems."""
    Claims.create(tmp_path)
    found = Claims(tmp_path, 0)
    manager = Manager(0, 0, 0, 0)
    assert found.add(7, 0, EntryKind.CLAIMED, manager)
    names = ["9" * 250 + ".0", "3." + "9" * 250, "100000.0", "\u0663.0", "5.4", "8.1", "." + "1" * 240]
    for name in [*names, "9" * 200 + "-0-0-0.claimed"]:
        os.link(tmp_path / point_claims.CLAIMS / "0-0-0-0.claimed", tmp_path / point_claims.CLAIMS / name)
    logs = Claims(tmp_path, 0).logs()
    assert {point: log.state for point, log in logs.items() if log.begun} == {7: State.HELD}
    assert max(logs) < io_bounds.SWEEP_POINTS
