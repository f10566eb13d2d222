"""What `JobMonitor.cancel` does with a run whose submission is not recorded, or whose job may be on another cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.monitoring import run_status
from launcher.monitoring.run_status import JobMonitor, RunState, status_of
from launcher.runs import event_files
from launcher.runs.directory import Run
from launcher.runs.events import Ended, Submitted, Submitting
from launcher.runs.history import read_history
from launcher.runs.lease_and_locks import SILENCE
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit.plans import bare_plan
from tests.unit.sweep_runs import begin

ASKED = "was it submitted to another cluster"


class Cluster:
    """What Slurm lists and has in its accounting, and what it was asked to cancel."""

    def __init__(self) -> None:
        self.jobs: dict[str, SchedulerJob] = {}
        self.ended: dict[str, SchedulerJob] = {}
        self.cancelled: list[str] = []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(Slurm, "jobs", lambda _: dict(made.jobs))
    monkeypatch.setattr(Slurm, "accounting", lambda *_: dict(made.ended))
    monkeypatch.setattr(Slurm, "cancel", lambda _, *jobs: made.cancelled.extend(jobs))
    monkeypatch.setattr(run_status, "forget", lambda plan: None)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "run")
    made.write_record(bare_plan(run_dir=str(made.path), cluster={"scheduler": "slurm"}), {}, {"token": "token"})
    made.journal(Submitting(token="token"))
    return made


@pytest.mark.parametrize(
    ("meanwhile", "found", "ended"),
    [
        (None, None, []),  # interrupted before there was a job
        (None, "9", ["9"]),  # interrupted before it was recorded
        ("9", None, ["9"]),  # submitted by another command, which holds the lock
    ],
)
def test_a_run_that_is_being_submitted_is_cancelled(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, meanwhile: str | None, found: str | None,
    ended: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(Slurm, "find", lambda *_: found)

    @contextlib.contextmanager
    def waits(folder: Path) -> Iterator[None]:
        if meanwhile is not None:
            run.journal(Submitted(job=meanwhile))
        yield

    monkeypatch.setattr(run_status, "only_submitter", waits)
    JobMonitor().cancel(run)
    history = read_history(run)
    assert (cluster.cancelled, run.has("cancelled"), history.cancelled) == (ended, True, True)
    assert history.may_have_job is bool(ended)


def test_a_job_of_a_chain_that_was_preempted_and_requeued_is_cancelled_with_those_that_follow(
    run: Run, cluster: Cluster
) -> None:
    run.journal(Submitted(job="7", chain=("8", "9")))
    begin(run, "7")
    event_files.append(run.attempts()[0].events_file("script"), Ended(code=75))
    cluster.jobs = {each: SchedulerJob(each, JobState.PENDING, "PENDING") for each in "789"}
    JobMonitor().cancel(run)
    assert set(cluster.cancelled) == {"7", "8", "9"}


def test_the_job_that_a_run_submits_while_it_is_cancelled_is_cancelled_too(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.journal(Submitted(job="7"))
    mark = Run.mark

    def late(self: Run, name: str) -> None:
        for event in (Submitting(token="token-1"), Submitted(job="8")):
            run.journal(event)
        mark(self, name)

    monkeypatch.setattr(Run, "mark", late)
    JobMonitor().cancel(run)
    assert cluster.cancelled == ["8"]


def test_a_run_with_a_heartbeat_is_not_lost_because_this_cluster_does_not_know_its_job(
    run: Run, cluster: Cluster
) -> None:
    run.journal(Submitted(job="7"))
    begin(run, "7")
    lease = run.path / "lease"
    lease.touch()
    seen = status_of(run, JobMonitor())
    assert (seen.state, seen.unanswered) == (RunState.UNKNOWN, ""), "the scheduler has answered"
    assert ASKED in seen.job.text
    with pytest.raises(QueryError, match=ASKED):
        JobMonitor().cancel(run)
    assert (cluster.cancelled, run.has("cancelled")) == ([], False)
    os.utime(lease, (time.time() - SILENCE - 1,) * 2)
    assert status_of(run, JobMonitor()).state is RunState.LOST
    lease.touch()
    cluster.ended = {"7": SchedulerJob("7", JobState.FAILED, "NODE_FAIL")}
    assert status_of(run, JobMonitor()).state is RunState.FAILED, "the scheduler knows how it ended"


@pytest.mark.parametrize(
    ("comment", "own"),
    [
        ("launcher-1", True), ("launcher-1-r1", True), ("launcher-1-m2", True), ("launcher-1-0", True), ("", True),
        ("a note of mine", True), (None, True), ("launcher-2", False), ("launcher-10", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("failed", [False, True])
def test_a_job_with_the_token_of_another_run_is_not_the_runs(
    run: Run, cluster: Cluster, comment: str | None, own: bool, failed: bool
) -> None:
    """Job numbers repeat. A comment without a token may be one that the user has written."""
    run.path.joinpath("journal.jsonl").unlink()
    run.journal(Submitting(token="launcher-1"))
    run.journal(Submitted(job="7"))
    begin(run, "7")
    if failed:
        event_files.append(run.attempts()[0].events_file("script"), Ended(code=1))
    cluster.jobs = {"7": SchedulerJob("7", JobState.RUNNING, "RUNNING", comment=comment, time_left=60)}
    seen = status_of(run, JobMonitor())
    if own:
        assert (seen.state, seen.left is None) == (RunState.RUNNING, False)
        JobMonitor().cancel(run)
        assert cluster.cancelled == ["7"]
        return
    assert seen.state is (RunState.FAILED if failed else RunState.UNKNOWN)
    assert (seen.left, seen.unanswered) == (None, "")
    with pytest.raises(QueryError, match="job 7 of slurm is another run's: was this run's"):
        JobMonitor().cancel(run)
    assert (cluster.cancelled, run.has("cancelled")) == ([], False)
