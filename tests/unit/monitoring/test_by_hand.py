"""The job that the user submits by hand (submit=false): how it is found, and what its run's state is until then."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.monitoring import run_status
from launcher.monitoring.run_status import JobMonitor, RunState, status_of
from launcher.runs.directory import Run
from launcher.runs.events import Event, Refused, Submitted, Submitting, every
from launcher.runs.history import journal_events, read_history
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from tests.unit.plans import bare_plan
from tests.unit.sweep_runs import end, make_sweep


class Server:
    """A scheduler with jobs of these tokens, which counts how often it was asked for one."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.silent = False
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def find(self, token: str, name: str) -> str | None:
        self.asked.append(token)
        if self.silent:
            raise QueryError("no answer")
        return self.jobs.get(token)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    found = Server()

    def queries(plan: Any, timeout: float = 0) -> Any:
        listed = {job: SchedulerJob(job, JobState.PENDING, "PENDING") for job in found.jobs.values()}
        return SimpleNamespace(
            find=found.find, key=str, jobs=lambda ids=None: listed, ended_all=lambda jobs: {},
            cancel=found.cancelled.append,
        )  # fmt: skip

    monkeypatch.setattr(run_status, "queries", queries)
    monkeypatch.setattr(run_status, "forget", lambda plan: None)
    yield found


def made(path: Path, **changes: Any) -> Run:
    run = Run.create(path)
    run.write_record(bare_plan(run_dir=str(path), cluster={"scheduler": "slurm"}, **changes), {}, {"token": "t"})
    return run


def jobs(run: Run) -> list[tuple[str, Sequence[str]]]:
    return [(each.job, tuple(each.chain)) for each in every(journal_events(run), Submitted)]


def test_a_job_is_found_and_recorded_once(tmp_path: Path, server: Server) -> None:
    run = made(tmp_path / "run")
    run.journal(Submitting(token="t", by_hand=True))
    assert status_of(run, JobMonitor()).state is RunState.UNSUBMITTED
    server.silent = True
    assert status_of(run, JobMonitor()).state is RunState.UNSUBMITTED
    assert jobs(run) == []
    server.silent, server.jobs = False, {"t": "7"}
    for _ in range(2):
        assert status_of(run, JobMonitor()).state is RunState.QUEUED
    assert jobs(run) == [("7", ())]
    assert server.asked == ["t"] * 3, "once it is known, nobody looks for it"


@pytest.mark.parametrize(
    ("after", "state"),
    [
        ([Refused(token="t-r0", error="invalid account")], RunState.UNSUBMITTED),
        ([], RunState.UNCONFIRMED),  # the submitter was killed
        ([Refused(token="t-r0"), Submitting(token="t-r0")], RunState.UNCONFIRMED),
        ([Refused(token="t-r0"), Submitting(token="t-r0"), Refused(token="t-r0")], RunState.UNSUBMITTED),
    ],
)
def test_a_resume_that_the_scheduler_refuses_leaves_the_run_to_the_user(
    tmp_path: Path, server: Server, after: list[Event], state: RunState
) -> None:
    run = made(tmp_path / "run")
    for event in [Submitting(token="t", by_hand=True), Submitting(token="t-r0"), *after]:
        run.journal(event)
    assert status_of(run, JobMonitor()).state is state


def test_a_refused_resume_with_the_token_of_the_users_job_leaves_it_to_the_user(tmp_path: Path, server: Server) -> None:
    run = made(tmp_path / "run")
    for event in (Submitting(token="t", by_hand=True), Submitting(token="t"), Refused(token="t")):
        run.journal(event)
    assert status_of(run, JobMonitor()).state is RunState.UNSUBMITTED


def test_a_full_disk_hides_no_job(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path / "run")
    run.journal(Submitting(token="t", by_hand=True))
    server.jobs = {"t": "7"}

    def full(self: Run, event: Event) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Run, "journal", full)
    assert status_of(run, JobMonitor()).state is RunState.QUEUED


def test_who_follows_a_run_does_not_look_at_each_turn(tmp_path: Path, server: Server) -> None:
    run, live = made(tmp_path / "run"), JobMonitor()
    run.journal(Submitting(token="t", by_hand=True))
    for _ in range(5):
        status_of(run, live)
    assert server.asked == ["t"]


def test_a_chain_is_recorded_when_all_of_it_is_there(tmp_path: Path, server: Server) -> None:
    run = made(tmp_path / "run", resume={"how": "chain", "max_attempts": 3})
    run.journal(Submitting(token="t", by_hand=True))
    server.jobs = {"t": "7", "t-1": "8"}
    assert status_of(run, JobMonitor()).history.job_id == "7"
    assert jobs(run) == []
    server.jobs["t-2"] = "9"
    assert status_of(run, JobMonitor()).history.waiting == ("8", "9")
    assert jobs(run) == [("7", ("8", "9"))]


def test_another_attempt_waits_for_the_user_too_although_the_last_one_is_over(tmp_path: Path, server: Server) -> None:
    run = made(tmp_path / "run")
    run.journal(Submitted(job="6"))
    end(run, 75, job="6")
    run.journal(Submitting(token="t-r1", by_hand=True))
    assert status_of(run, JobMonitor()).state is RunState.UNSUBMITTED
    server.jobs = {"t-r1": "7"}
    assert status_of(run, JobMonitor()).history.job_id == "7"
    assert jobs(run) == [("6", ()), ("7", ())]


def test_a_job_that_has_started_is_known_although_the_scheduler_has_forgotten_it(
    tmp_path: Path, server: Server
) -> None:
    run = made(tmp_path / "run")
    run.journal(Submitting(token="t", by_hand=True))
    end(run, 75, job="7")
    seen = status_of(run, JobMonitor())
    assert (seen.state, seen.history.job_id) == (RunState.STOPPED, "7")
    assert jobs(run) == [("7", ())], "so the token of its next attempt is another one"
    assert server.asked == []


def test_a_cancelled_run_stays_cancelled_when_its_job_is_found(tmp_path: Path, server: Server) -> None:
    run = made(tmp_path / "run")
    run.journal(Submitting(token="t", by_hand=True))
    server.jobs = {"t": "7"}
    JobMonitor().cancel(run)
    server.jobs = {}
    history = read_history(run)
    assert (server.cancelled, history.job_id, history.cancelled) == (["7"], "7", True)


def test_an_array_is_looked_for_once_and_found_for_all_its_points(tmp_path: Path, server: Server) -> None:
    sweep = make_sweep(tmp_path, 3, array=None, plan=bare_plan(cluster={"scheduler": "slurm"}))
    sweep.submitting("t", range(3), by_hand=True)
    server.jobs = {"t": "5"}
    live = JobMonitor()
    known = [(each.run, (each.run.plan(), read_history(each.run))) for each in sweep.points()]
    assert [status_of(run, live, each).history.job_id for run, each in known] == ["5_0", "5_1", "5_2"]
    assert server.asked == ["t"]
    assert [each.job for each in sweep.submissions()] == ["5"]
