"""What is done about a fault: the whole truth table, and how restarts are counted."""

from __future__ import annotations

import itertools

import pytest

from launcher.agent.policy import History, Kind, Then, decide

AFTER_PROGRESS = History(round=1, best=4, tried=1, listened=True)
SPENT = History(round=4, best=20, tried=3, listened=True)


def verdict(
    kind: Kind, history: History = AFTER_PROGRESS, *, listens: bool = True, stopping: bool = False, enough: bool = True,
    step: int = 20, unknown: bool = False, again: bool = False,
) -> Then:  # fmt: skip
    progress = None if unknown else step > history.best
    return decide(
        kind, history, progress, listens=listens, stopping=stopping, enough=enough, max_restarts=3, again=again
    )


@pytest.mark.parametrize(
    ("kind", "seen", "then"),
    [
        (Kind.NO_RETRY, {}, Then.NO_RETRY),
        (Kind.NO_RETRY, {"stopping": True}, Then.NO_RETRY),
        (Kind.LEFT, {}, Then.RESUME),
        (Kind.LEFT, {"listens": False}, Then.RESUME),
        (Kind.REGROUP, {}, Then.RESTART),
        (Kind.REGROUP, {"history": SPENT}, Then.RESTART),
        (Kind.REGROUP, {"stopping": True}, Then.RESUME),
        (Kind.KILLED, {"listens": False}, Then.FAIL),
        (Kind.HUNG, {"listens": False}, Then.FAIL),
        (Kind.LOST_NODE, {"listens": False}, Then.FAIL),
        (Kind.RAISED, {"listens": False, "stopping": True}, Then.FAIL),
        (Kind.RAISED, {}, Then.RESTART),
        (Kind.RAISED, {"step": 4}, Then.FAIL),
        (Kind.RAISED, {"step": 4, "stopping": True}, Then.FAIL),
        (Kind.RAISED, {"stopping": True}, Then.RESUME),
        (Kind.KILLED, {"stopping": True}, Then.RESUME),
        (Kind.LOST_PEER, {"stopping": True}, Then.RESUME),
        (Kind.LOST_NODE, {"enough": False}, Then.RESUME),
        (Kind.LOST_NODE, {}, Then.RESTART),
        (Kind.KILLED, {"step": 4}, Then.RESTART),
        (Kind.KILLED, {"history": SPENT}, Then.FAIL),
        (Kind.KILLED, {"history": SPENT, "step": 21}, Then.RESTART),
        (Kind.HUNG, {"history": SPENT}, Then.FAIL),
        (Kind.HUNG, {"step": 4}, Then.RESTART),
        (Kind.HUNG, {"step": 4, "again": True}, Then.FAIL),
        (Kind.HUNG, {"step": 4, "again": True, "stopping": True}, Then.RESUME),
        (Kind.HUNG, {"again": True}, Then.RESTART),
        (Kind.HUNG, {"again": True, "unknown": True}, Then.RESTART),
        (Kind.LOST_NODE, {"history": SPENT}, Then.FAIL),
        (Kind.RAISED, {"unknown": True}, Then.RESTART),
        (Kind.RAISED, {"unknown": True, "stopping": True}, Then.RESUME),
        (Kind.RAISED, {"unknown": True, "history": SPENT}, Then.RESUME),
        (Kind.KILLED, {"unknown": True, "history": SPENT}, Then.RESUME),
        (Kind.KILLED, {"unknown": True, "listens": False}, Then.FAIL),
        (Kind.NO_RETRY, {"unknown": True}, Then.NO_RETRY),
    ],
)
def test_what_is_done(kind: Kind, seen: dict, then: Then) -> None:
    assert verdict(kind, **seen) is then


@pytest.mark.parametrize(("kind", "step"), list(itertools.product(Kind, [0, 20, 30])))
def test_who_is_told_to_stop_never_starts_again(kind: Kind, step: int) -> None:
    for history, listens, enough in itertools.product((History(), AFTER_PROGRESS, SPENT), (True, False), (True, False)):
        then = verdict(kind, history, listens=listens, stopping=True, enough=enough, step=step)
        assert then is not Then.RESTART


def test_only_restarts_without_progress_are_counted() -> None:
    history = History()
    for step in (5, 9, 12, 30):
        history = history.after(step)
        assert (history.tried, history.best) == (1, step)
    for tried in (2, 3):
        history = history.after(30)
        assert (history.tried, history.best) == (tried, 30)
    assert decide(Kind.KILLED, history, False, listens=True, stopping=False, enough=True, max_restarts=3) is Then.FAIL
    assert history.round == 6


def test_no_restart_is_made_where_none_is_wanted() -> None:
    for kind in (Kind.KILLED, Kind.HUNG, Kind.RAISED, Kind.LOST_NODE):
        for progress in (True, False, None):
            then = decide(kind, History(), progress, listens=True, stopping=False, enough=True, max_restarts=0)
            assert then is Then.FAIL


def test_a_new_round_for_a_node_that_came_back_is_free() -> None:
    assert History().after(7, counts=False).tried == 0


def test_no_restart_before_any_step_is_for_ever() -> None:
    history, rounds = History(), 0
    while (
        decide(Kind.KILLED, history, False, listens=True, stopping=False, enough=True, max_restarts=2) is Then.RESTART
    ):
        history, rounds = history.after(-1), rounds + 1
    assert rounds == 2


@pytest.mark.parametrize(("then", "code"), [(Then.FAIL, 1), (Then.RESUME, 75), (Then.NO_RETRY, 93), (Then.RESTART, 1)])
def test_exit_codes(then: Then, code: int) -> None:
    assert then.exit_code == code
