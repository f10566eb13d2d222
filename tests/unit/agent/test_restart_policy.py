"""What is done about a fault: the whole truth table, and how restarts are counted."""

from __future__ import annotations

import itertools

import pytest

from launcher.agent.policy import History, NextStep, RoundEnd, decide

AFTER_PROGRESS = History(round=1, best=4, tried=1, listened=True)
SPENT = History(round=4, best=20, tried=3, listened=True)


def verdict(
    kind: RoundEnd, history: History = AFTER_PROGRESS, *, listens: bool = True, stopping: bool = False,
    enough: bool = True,
    step: int = 20, unknown: bool = False, again: bool = False, has_checkpoint: bool = False,
) -> NextStep:  # fmt: skip
    progress = None if unknown else step > history.best
    return decide(
        kind, history, progress, listens=listens, stopping=stopping, enough=enough, max_restarts=3, again=again,
        has_checkpoint=has_checkpoint,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "seen", "then"),
    [
        (RoundEnd.NO_RETRY, {}, NextStep.NO_RETRY),
        (RoundEnd.NO_RETRY, {"stopping": True}, NextStep.NO_RETRY),
        (RoundEnd.LEFT, {}, NextStep.RESUME),
        (RoundEnd.LEFT, {"listens": False}, NextStep.RESUME),
        (RoundEnd.REGROUP, {}, NextStep.RESTART),
        (RoundEnd.REGROUP, {"history": SPENT}, NextStep.RESTART),
        (RoundEnd.REGROUP, {"stopping": True}, NextStep.RESUME),
        (RoundEnd.KILLED, {"listens": False}, NextStep.FAIL),
        (RoundEnd.HUNG, {"listens": False}, NextStep.FAIL),
        (RoundEnd.LOST_NODE, {"listens": False}, NextStep.FAIL),
        (RoundEnd.LOST_NODE, {"listens": False, "has_checkpoint": True}, NextStep.RESUME),
        (RoundEnd.KILLED, {"listens": False, "has_checkpoint": True}, NextStep.RESUME),  # asked only at a stop request
        (RoundEnd.LOST_PEER, {"listens": False, "has_checkpoint": True}, NextStep.RESUME),  # as well
        (RoundEnd.KILLED, {"listens": False, "stopping": True}, NextStep.FAIL),
        (RoundEnd.RAISED, {"listens": False, "has_checkpoint": True, "stopping": True}, NextStep.FAIL),
        (RoundEnd.RAISED, {"listens": False, "stopping": True}, NextStep.FAIL),
        (RoundEnd.RAISED, {}, NextStep.RESTART),
        (RoundEnd.RAISED, {"step": 4}, NextStep.FAIL),
        (RoundEnd.RAISED, {"step": 4, "stopping": True}, NextStep.FAIL),
        (RoundEnd.RAISED, {"stopping": True}, NextStep.RESUME),
        (RoundEnd.KILLED, {"stopping": True}, NextStep.RESUME),
        (RoundEnd.LOST_PEER, {"stopping": True}, NextStep.RESUME),
        (RoundEnd.LOST_NODE, {"enough": False}, NextStep.RESUME),
        (RoundEnd.LOST_NODE, {}, NextStep.RESTART),
        (RoundEnd.KILLED, {"step": 4}, NextStep.RESTART),
        (RoundEnd.KILLED, {"history": SPENT}, NextStep.FAIL),
        (RoundEnd.KILLED, {"history": SPENT, "step": 21}, NextStep.RESTART),
        (RoundEnd.HUNG, {"history": SPENT}, NextStep.FAIL),
        (RoundEnd.HUNG, {"step": 4}, NextStep.RESTART),
        (RoundEnd.HUNG, {"step": 4, "again": True}, NextStep.FAIL),
        (RoundEnd.HUNG, {"step": 4, "again": True, "stopping": True}, NextStep.RESUME),
        (RoundEnd.HUNG, {"again": True}, NextStep.RESTART),
        (RoundEnd.HUNG, {"again": True, "history": SPENT, "step": 21}, NextStep.FAIL),
        (RoundEnd.RAISED, {"again": True}, NextStep.RESTART),
        (RoundEnd.RAISED, {"again": True, "history": SPENT, "step": 21}, NextStep.FAIL),
        (RoundEnd.RAISED, {"again": True, "history": SPENT, "unknown": True}, NextStep.RESUME),
        (RoundEnd.HUNG, {"again": True, "unknown": True}, NextStep.RESTART),
        (RoundEnd.LOST_NODE, {"history": SPENT}, NextStep.FAIL),
        (RoundEnd.RAISED, {"unknown": True}, NextStep.RESTART),
        (RoundEnd.RAISED, {"unknown": True, "stopping": True}, NextStep.RESUME),
        (RoundEnd.RAISED, {"unknown": True, "history": SPENT}, NextStep.RESUME),
        (RoundEnd.KILLED, {"unknown": True, "history": SPENT}, NextStep.RESUME),
        (RoundEnd.KILLED, {"unknown": True, "listens": False}, NextStep.FAIL),
        (RoundEnd.NO_RETRY, {"unknown": True}, NextStep.NO_RETRY),
    ],
)
def test_what_is_done(kind: RoundEnd, seen: dict, then: NextStep) -> None:
    assert verdict(kind, **seen) is then


@pytest.mark.parametrize(("kind", "step"), list(itertools.product(RoundEnd, [0, 20, 30])))
def test_who_is_told_to_stop_never_starts_again(kind: RoundEnd, step: int) -> None:
    for history, listens, enough in itertools.product((History(), AFTER_PROGRESS, SPENT), (True, False), (True, False)):
        then = verdict(kind, history, listens=listens, stopping=True, enough=enough, step=step)
        assert then is not NextStep.RESTART


def test_only_restarts_without_progress_are_counted() -> None:
    history = History()
    for step in (5, 9, 12, 30):
        history = history.after(step)
        assert (history.tried, history.best) == (1, step)
    for tried in (2, 3):
        history = history.after(30)
        assert (history.tried, history.best) == (tried, 30)
    assert (
        decide(RoundEnd.KILLED, history, False, listens=True, stopping=False, enough=True, max_restarts=3)
        is NextStep.FAIL
    )
    assert history.round == 6


def test_no_restart_is_made_where_none_is_wanted() -> None:
    for kind in (RoundEnd.KILLED, RoundEnd.HUNG, RoundEnd.RAISED, RoundEnd.LOST_NODE):
        for progress in (True, False, None):
            then = decide(kind, History(), progress, listens=True, stopping=False, enough=True, max_restarts=0)
            assert then is NextStep.FAIL


def test_a_new_round_for_a_node_that_came_back_is_free() -> None:
    assert History().after(7, counts=False).tried == 0


def test_no_restart_before_any_step_is_for_ever() -> None:
    history, rounds = History(), 0
    while (
        decide(RoundEnd.KILLED, history, False, listens=True, stopping=False, enough=True, max_restarts=2)
        is NextStep.RESTART
    ):
        history, rounds = history.after(-1), rounds + 1
    assert rounds == 2


@pytest.mark.parametrize(
    ("then", "code"), [(NextStep.FAIL, 1), (NextStep.RESUME, 75), (NextStep.NO_RETRY, 93), (NextStep.RESTART, 1)]
)
def test_exit_codes(then: NextStep, code: int) -> None:
    assert then.exit_code == code
