"""The truth table of a run's state: its own record first, the scheduler as a witness."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from launcher import errors
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, run_state, status_of
from launcher.runs.directory import Run
from launcher.runs.events import Fault, Met, Progress, Pruned, SetupFailed, Submitted, Submitting
from launcher.runs.history import RunHistory, history_of
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit import sweep_runs
from tests.unit.plans import bare_plan, plan_of

P, R, S, D, F, C, G, U = (
    JobState.PENDING,
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.DONE,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.GONE,
    JobState.UNKNOWN,
)
HANDED = Submitting(token="t", by_hand=True)
NO_ANSWER = "no answer"
EVERY = (None, P, R, S, D, F, C, G, U, NO_ANSWER)
NOT_LIVE = (None, D, F, C, G)
BOTH = (False, True)


def history(
    *,
    attempt: int | None = None,
    code: int | None = None,
    cancelled: bool = False,
    job: str | None = "7",
    asked_to_stop: bool = False,
    agents: int | None = None,
    pruned: bool = False,
    by_hand: Submitting | None = None,
) -> RunHistory:
    events = [] if code is None else [{"event": "started"}, {"event": "ended", "code": code}]
    if asked_to_stop:
        events.append({"event": "stop_requested", "signal": "SIGTERM", "host": "n1"})
    return RunHistory(
        job, cancelled, attempt, tuple(events), exit_code=agents, pruned=Pruned(step=3) if pruned else None,
        by_hand=by_hand,
    )  # fmt: skip


def judged(history: RunHistory, job: Any) -> RunState:
    return run_state(history, None, answered=False) if job is NO_ANSWER else run_state(history, job)


# what the record says, what the scheduler says, was it to be cancelled -> state; row by row as in the docstring
TABLE: list[tuple[dict[str, Any], Any, Any, RunState]] = [
    ({"attempt": 0, "code": 0}, EVERY, BOTH, RunState.DONE),
    *(({"attempt": 0, "code": code}, (P,), BOTH, RunState.QUEUED) for code in (1, 75, 93, 143)),
    *(({"attempt": 0, "code": code}, (R,), BOTH, RunState.RUNNING) for code in (1, 75, 93, 143)),
    *(({"attempt": 0, "code": code}, (U,), BOTH, RunState.UNKNOWN) for code in (1, 75, 93, 143)),
    ({"attempt": 0, "code": 75}, NOT_LIVE, (False,), RunState.STOPPED),
    ({"attempt": 0, "code": 75}, NOT_LIVE, (True,), RunState.CANCELLED),
    *(({"attempt": 0, "code": code}, NOT_LIVE, (False,), RunState.FAILED) for code in (1, 93)),
    ({"attempt": 0, "code": 143, "asked_to_stop": True}, (None, D, F, G), (False,), RunState.FAILED),
    ({"attempt": 0, "code": 143}, (C,), (False,), RunState.CANCELLED),
    *(({"attempt": 0, "code": code}, NOT_LIVE, (True,), RunState.CANCELLED) for code in (1, 93, 143)),
    ({"attempt": 2}, (R,), BOTH, RunState.RUNNING),
    ({"attempt": 2}, (S,), BOTH, RunState.SUSPENDED),
    ({"attempt": 0, "code": 143}, (S,), BOTH, RunState.SUSPENDED),
    ({"attempt": 2}, (P,), BOTH, RunState.QUEUED),
    ({"attempt": 2}, NOT_LIVE, (True,), RunState.CANCELLED),
    ({"attempt": 2}, (C,), (False,), RunState.CANCELLED),
    ({"attempt": 2}, (F,), (False,), RunState.FAILED),
    ({"attempt": 2}, (None, D, G), (False,), RunState.LOST),
    ({"attempt": 2}, (U, NO_ANSWER), BOTH, RunState.UNKNOWN),
    ({"attempt": 2, "asked_to_stop": True}, (None, D, G), (False,), RunState.STOPPED),
    ({"attempt": 2, "asked_to_stop": True}, (F,), (False,), RunState.FAILED),
    ({"attempt": 2, "asked_to_stop": True}, (C,), BOTH, RunState.CANCELLED),
    *(({"attempt": 2, "agents": code}, (R,), BOTH, RunState.RUNNING) for code in (0, 1, 75)),
    *(({"attempt": 2, "agents": code}, (U, NO_ANSWER), BOTH, RunState.UNKNOWN) for code in (0, 1, 75)),
    ({"attempt": 2, "agents": 0}, NOT_LIVE, BOTH, RunState.DONE),
    ({"attempt": 2, "agents": 75, "asked_to_stop": True}, NOT_LIVE, (False,), RunState.STOPPED),
    ({"attempt": 2, "agents": 1}, NOT_LIVE, (False,), RunState.FAILED),
    *(({"attempt": 2, "agents": code}, NOT_LIVE, (True,), RunState.CANCELLED) for code in (1, 75)),
    ({"attempt": 2, "agents": 143}, (C,), BOTH, RunState.CANCELLED),
    *(({"attempt": 0, "code": code, "pruned": True}, EVERY, BOTH, RunState.PRUNED) for code in (1, 75, 143)),
    ({"attempt": 0, "code": 0, "pruned": True}, EVERY, BOTH, RunState.DONE),  # it was faster
    ({"attempt": 0, "pruned": True}, (R,), BOTH, RunState.RUNNING),  # it has not stopped yet
    ({}, (P,), BOTH, RunState.QUEUED),
    ({}, (R,), BOTH, RunState.RUNNING),
    ({}, NOT_LIVE, (True,), RunState.CANCELLED),
    ({}, (C,), (False,), RunState.CANCELLED),
    ({}, (F,), (False,), RunState.FAILED),
    ({}, (None, D, G), (False,), RunState.LOST),
    ({}, (U, NO_ANSWER), BOTH, RunState.UNKNOWN),
    ({"job": None}, EVERY, BOTH, RunState.UNCONFIRMED),
    ({"job": None, "by_hand": HANDED}, EVERY, BOTH, RunState.UNSUBMITTED),
    (
        {"job": None, "by_hand": HANDED, "attempt": 0, "code": 75},
        EVERY,
        BOTH,
        RunState.UNSUBMITTED,
    ),
    ({"job": None, "attempt": 0}, (R,), BOTH, RunState.RUNNING),  # it started before its id was written down
]
CASES = [(row, job, cancelled, state) for row, jobs, asked, state in TABLE for job, cancelled in product(jobs, asked)]


def test_the_table() -> None:
    found = [judged(history(**row, cancelled=cancelled), job) for row, job, cancelled, _ in CASES]
    assert [(*case, state) for case, state in zip(CASES, found, strict=True) if state is not case[-1]] == []


def test_nothing_but_the_records_own_word_is_success() -> None:
    rows = [{}, {"attempt": 0}, {"job": None}, *({"attempt": 0, "code": code} for code in (1, 75, 93))]
    done = [case for case in product(rows, EVERY) if judged(history(**case[0]), case[1]) is RunState.DONE]
    assert done == []


OVER = {RunState.DONE, RunState.PRUNED, RunState.STOPPED, RunState.FAILED, RunState.CANCELLED, RunState.LOST}


@pytest.mark.parametrize("state", RunState)
def test_nobody_waits_for_a_run_that_is_over_or_leaves_one_that_may_not_be(state: RunState) -> None:
    assert state.over == (state in OVER)


@pytest.mark.parametrize(
    ("state", "code", "exit_code"),
    [
        (RunState.DONE, 0, errors.DONE),
        (RunState.STOPPED, 75, errors.RESUME),
        (RunState.FAILED, 93, errors.NO_RETRY),
        (RunState.FAILED, 1, errors.FAILED),
        (RunState.FAILED, 143, errors.FAILED),
        (RunState.FAILED, None, errors.FAILED),
        (RunState.CANCELLED, 93, errors.FAILED),
        (RunState.PRUNED, 75, errors.DONE),
        *(
            (state, None, errors.FAILED)
            for state in RunState
            if state not in (RunState.DONE, RunState.PRUNED, RunState.STOPPED)
        ),
    ],
)
def test_who_waits_for_a_run_exits_as_it_ended(state: RunState, code: int | None, exit_code: int) -> None:
    seen = RunStatus(Run(Path("/runs/a")), plan_of(), history(attempt=0, code=code), state, None)
    assert seen.exit_code == exit_code


def test_every_state_is_in_the_tables() -> None:
    assert {state for *_, state in CASES} == set(RunState)
    assert {job for job in EVERY if isinstance(job, JobState)} == set(JobState)


def test_only_what_waits_or_runs_is_live() -> None:
    assert {state for state in JobState if state.live} == {P, R, S}


@pytest.mark.parametrize(
    ("journal", "job_id", "cancelled"),
    [
        ([], None, False),
        ([{"event": "submitting", "token": "t"}], None, False),
        ([{"event": "submitting", "token": "t"}, {"event": "submitted", "job": "7"}], "7", False),
        ([{"event": "submitted", "job": "7"}, {"event": "submitted", "job": "8"}], "8", False),
        ([{"event": "submitted", "job": "7"}, {"event": "cancelled"}], "7", True),
        ([{"event": "submitted", "job": "7"}, {"event": "cancelled"}, {"event": "cancel_failed"}], "7", False),
        (
            [
                {"event": "submitted", "job": "7"},
                {"event": "cancelled"},
                {"event": "cancel_failed"},
                {"event": "cancelled"},
            ],
            "7",
            True,
        ),
        ([{"event": "submitted", "job": "7"}, {"event": "cancelled"}, {"event": "submitted", "job": "8"}], "8", False),
    ],
)
def test_the_history_follows_from_the_journal(
    journal: list[dict[str, Any]], job_id: str | None, cancelled: bool
) -> None:
    told = history_of(journal, None, ())
    assert (told.job_id, told.cancelled, told.ended, told.fault) == (job_id, cancelled, None, None)


STARTED_7 = {"event": "started", "time": 2.0, "job": "7"}
STARTED_9 = {"event": "started", "time": 2.0, "job": "9"}
STOPPED = {"event": "ended", "code": 75}


@pytest.mark.parametrize(
    ("submitted", "events", "job_id", "waiting"),
    [
        ({"job": "7", "time": 1.0}, [STARTED_7], "7", ()),
        ({"job": "8", "time": 3.0}, [STARTED_7, STOPPED], "8", ()),  # the job itself submitted the next
        ({"job": "8", "time": 1.0}, [STARTED_9], "9", ()),  # it could not say so
        ({"job": "7", "time": 1.0, "chain": ["8", "9"]}, [], "7", ("8", "9")),
        ({"job": "7", "time": 1.0, "chain": ["8", "9"]}, [STARTED_7], "7", ("8", "9")),
        ({"job": "7", "time": 1.0, "chain": ["8", "9"]}, [STARTED_7, STOPPED], "8", ("9",)),
        ({"job": "7", "time": 1.0, "chain": ["8", "9"]}, [STARTED_7, {"event": "ended", "code": 1}], "7", ("8", "9")),
        ({"job": "7", "time": 1.0, "chain": ["8", "9"]}, [STARTED_9, STOPPED], "9", ()),
    ],
)
def test_the_current_job_is_the_one_that_runs_or_is_to_do_so_next(
    submitted: dict[str, Any], events: list[dict[str, Any]], job_id: str, waiting: tuple[str, ...]
) -> None:
    told = history_of([{"event": "submitted", **submitted}], 0, events)
    assert (told.job_id, told.waiting) == (job_id, waiting)


def test_the_first_fault_and_the_last_progress_count() -> None:
    events = [
        {"event": "progress", "step": 1, "total": 9},
        {"event": "fault", "error": "first"},
        {"event": "progress", "step": 2, "total": 9},
        {"event": "fault", "error": "second"},
        {"event": "ended", "code": 1},
    ]
    told = history_of([], 0, events)
    assert told.fault == Fault(error="first")
    assert told.last(Progress) == Progress(step=2, total=9)
    assert told.last(Met) is None
    assert told.ended == 1
    assert history_of([], 0, [{"event": "setup_failed", "line": 2, "host": "n"}]).fault == SetupFailed(line=2, host="n")


@pytest.mark.parametrize(
    ("begun", "code", "resubmitted", "state"),
    [
        (1.0, 75, False, RunState.PRUNED),
        (1.0, 143, False, RunState.PRUNED),
        (1.0, 0, False, RunState.DONE),  # it was faster
        (1.0, None, False, RunState.RUNNING),  # it has not stopped yet
        (3.0, 75, False, RunState.RUNNING),  # it was started again
        (1.0, 75, True, RunState.RUNNING),
    ],
)
def test_a_point_that_its_search_has_ended_is_pruned(
    begun: float, code: int | None, resubmitted: bool, state: RunState
) -> None:
    """Its job goes on, with other points."""
    journal = [{"event": "pruned", "time": 2.0, "step": 5}]
    if resubmitted:
        journal.append({"event": "submitted", "time": 3.0, "job": "7", "token": "t"})
    events: list[dict[str, Any]] = [{"event": "started", "time": begun, "job": "7", "host": "n1"}]
    if code is not None:
        events.append({"event": "ended", "time": 4.0, "code": code})
    assert run_state(history_of(journal, 0, events), R) is state


@pytest.mark.parametrize(
    ("begun", "code", "states", "state", "job"),
    [
        ("7", None, {"7": R, "8": P, "9": P}, RunState.RUNNING, "7"),
        ("7", None, {"7": F, "8": P, "9": P}, RunState.QUEUED, "8"),  # it was killed, and could say nothing
        ("7", None, {"8": P, "9": P}, RunState.QUEUED, "8"),
        (None, None, {"7": C, "8": R, "9": P}, RunState.RUNNING, "8"),  # it has not written yet that it has started
        ("8", None, {"8": F, "9": R}, RunState.RUNNING, "9"),
        ("7", 1, {"7": F, "8": P, "9": P}, RunState.FAILED, "7"),  # the others end when they start
        ("7", None, {"7": F}, RunState.FAILED, "7"),
    ],
)
def test_a_chain_goes_on_after_a_job_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str | None, code: int | None,
    states: dict[str, JobState], state: RunState, job: str,
) -> None:  # fmt: skip
    run, plan = Run.create(tmp_path / "run"), bare_plan(resume={"how": "chain", "max_attempts": 3})
    run.write_record(plan, {}, {"token": "t"})
    run.journal(Submitting(token="t"))
    run.journal(Submitted(job="7", chain=("8", "9")))
    if code is not None:
        sweep_runs.end(run, code, job=begun)
    elif begun is not None:
        sweep_runs.begin(run, begun)
    listed = {each: SchedulerJob(each, job_state, job_state.name) for each, job_state in states.items()}
    monkeypatch.setattr(Slurm, "jobs", lambda _: listed)
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})
    seen = status_of(run, JobMonitor())
    assert (seen.state, seen.history.job_id) == (state, job)
