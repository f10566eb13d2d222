"""The points of a sweep as they are now: every state, and few questions to the scheduler."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.monitoring.run_status import JobMonitor
from launcher.monitoring.sweep_status import DAMAGED, counts, live_pilots, not_begun, point_statuses, summary
from launcher.processes import Process
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import read_history
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.slurm.client import Slurm
from tests.unit.clock import Clock
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import begin, end, make_sweep, submit_array

pytestmark = pytest.mark.usefixtures("clock")  # what a scheduler has said is good for a few seconds
HERE = plan_of(cluster={"scheduler": "local"})
Jobs = dict[str, JobState]
Says = Callable[..., list[str]]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """Sets what Slurm says of its jobs, and of those that are over; returns the questions that it was asked."""

    def says(jobs: Jobs, over: Jobs | None = None) -> list[str]:
        asked: list[str] = []

        def listed(*_: object) -> dict[str, SchedulerJob]:
            asked.append("jobs")
            return {job: SchedulerJob(job, state, state.value.upper()) for job, state in jobs.items()}

        def accounting(_: object, ids: list[str]) -> dict[str, SchedulerJob]:
            asked.append(" ".join(ids))
            return {job: SchedulerJob(job, state, state.value.upper()) for job, state in (over or {}).items()}

        monkeypatch.setattr(Slurm, "jobs", listed)
        monkeypatch.setattr(Slurm, "accounting", accounting)
        return asked

    return says


def states(sweep: Sweep) -> list[str]:
    return [each.state for each in point_statuses(sweep)]


def test_points_of_an_array_are_as_their_elements_are(tmp_path: Path, says: Says) -> None:
    sweep = make_sweep(tmp_path, 8)
    end(sweep.run(0), 0)
    end(sweep.run(1), 1, fault="ValueError")
    end(sweep.run(2), 75)
    begin(sweep.run(3), "100_3")
    sweep.run(5).journal(kinds.Cancelled())
    says({"100_3": JobState.RUNNING, "100_4": JobState.PENDING}, {"100_6": JobState.FAILED})
    assert states(sweep) == ["done", "failed", "stopped", "running", "queued", "cancelled", "failed", "lost"]


def test_a_thousand_points_are_two_questions(tmp_path: Path, says: Says) -> None:
    sweep = make_sweep(tmp_path, 40)
    asked = says({f"100_{index}": JobState.RUNNING for index in range(10)})
    assert summary(counts(point_statuses(sweep))) == "0/40 done, 30 lost, 10 running"
    assert asked == ["jobs", "100"]


def test_a_scheduler_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, asked = make_sweep(tmp_path, 5), []

    def fails(*_: object) -> dict[str, SchedulerJob]:
        asked.append(1)
        raise QueryError("sacct does not answer")

    monkeypatch.setattr(Slurm, "jobs", lambda *_: {})
    monkeypatch.setattr(Slurm, "accounting", fails)
    assert (states(sweep), len(asked)) == (["unknown"] * 5, 1)


def test_pbs_is_asked_for_its_history_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(cluster={"scheduler": "pbs"})
    sweep, asked = make_sweep(tmp_path, 4, array="150.pbs-srv", plan=plan), []

    def history(*_: object) -> dict[str, SchedulerJob]:
        asked.append(1)
        return {"150[1]": SchedulerJob("150[1]", JobState.CANCELLED, "CANCELLED")}

    monkeypatch.setattr(PBS, "jobs", lambda *_: {"150[0]": SchedulerJob("150[0]", JobState.RUNNING, "R")})
    monkeypatch.setattr(PBS, "ended_all", history)
    assert (states(sweep), len(asked)) == (["running", "cancelled", "lost", "lost"], 1)


def test_pbs_is_asked_once_how_its_pilots_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, plan, asked = make_sweep(tmp_path, 1, array=None), plan_of(cluster={"scheduler": "pbs"}), []
    for number in range(5):
        pilot = Run.create(sweep.pilot(number).path)
        own = dataclasses.replace(plan, run_id=pilot.id, run_dir=str(pilot.path))
        pilot.write_record(own, {}, {"launcher": "1", "token": "t"})
        pilot.journal(kinds.Submitted(job=f"{number}.pbs-srv"))

    def history(*_: object) -> dict[str, SchedulerJob]:
        asked.append(1)
        return {str(number): SchedulerJob(str(number), JobState.CANCELLED, "CANCELLED") for number in range(4)}

    monkeypatch.setattr(PBS, "jobs", lambda *_: {"4": SchedulerJob("4", JobState.RUNNING, "R")})
    monkeypatch.setattr(PBS, "ended_all", history)
    assert [each.run.path.name for each in live_pilots(sweep, JobMonitor())] == [sweep.pilot(4).path.name]
    assert len(asked) == 1


def test_the_end_of_a_job_counts_though_it_ran_when_others_were_asked_for(
    tmp_path: Path, says: Says, clock: Clock
) -> None:
    sweep, same = make_sweep(tmp_path, 2), JobMonitor()
    says({"100_0": JobState.RUNNING}, {"100_0": JobState.RUNNING, "100_1": JobState.FAILED})
    assert [each.state for each in point_statuses(sweep, same)] == ["running", "failed"]
    says({}, {"100_0": JobState.CANCELLED, "100_1": JobState.FAILED})
    clock.now += 60
    assert [each.state for each in point_statuses(sweep, same)] == ["cancelled", "failed"]


def test_points_that_were_never_handed_over_wait_unless_they_are_cancelled(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3, array=None)
    for point in (0, 1):
        sweep.run(point).journal(kinds.Cancelled())
        sweep.run(point).mark("cancelled")
    sweep.run(0).unmark("cancelled")  # by a rerun, whose job was refused
    assert states(sweep) == ["waiting", "cancelled", "waiting"]
    sweep.mark_cancelled(True)
    assert states(sweep) == ["cancelled"] * 3
    sweep.mark_cancelled(False)
    assert states(sweep) == ["waiting", "cancelled", "waiting"]


def test_a_point_that_may_have_been_handed_over_is_unconfirmed(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    sweep.submitting("t", [0])
    assert states(sweep) == ["unconfirmed", "waiting"]


def test_points_of_this_machine_wait_for_their_turn(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 4, array=None, plan=HERE)
    me = Process.of(os.getpid())
    sweep.request_local([0, 1, 2, 3], restart=False)
    for index in (0, 1):
        sweep.run(index).journal(kinds.ProcessStarted(pid=me.pid, start=me.start - index, host=me.host))
        sweep.run(index).journal(kinds.Submitted(job=f"local-{index}"))
    end(sweep.run(1), 1, job="local-1")
    sweep.run(3).mark("cancelled")
    sweep.run(3).journal(kinds.Cancelled())
    assert states(sweep) == ["running", "failed", "waiting", "cancelled"]
    sweep.request_local([1], restart=True)
    assert states(sweep) == ["running", "waiting", "waiting", "cancelled"]
    sweep.mark_cancelled(True)
    assert states(sweep) == ["running", "failed", "cancelled", "cancelled"]


def test_a_point_is_what_its_last_job_is(tmp_path: Path, says: Says) -> None:
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(1), 1)
    submit_array(sweep, [1], "200", token="again")
    says({"100_0": JobState.RUNNING, "200_0": JobState.PENDING})
    assert states(sweep) == ["running", "queued"]


def test_points_that_are_done_are_not_looked_at_again(tmp_path: Path, says: Says) -> None:
    sweep, same = make_sweep(tmp_path, 2), JobMonitor()
    says({})
    end(sweep.run(0), 0)
    assert [each.state for each in point_statuses(sweep, same)] == ["done", "lost"]
    (sweep.run(0).path / "attempts" / "0" / "events" / "script.jsonl").unlink()
    assert [each.state for each in point_statuses(sweep, same)] == ["done", "lost"]


def test_a_point_whose_record_cannot_be_read_keeps_nobody_from_the_others(tmp_path: Path, says: Says) -> None:
    sweep = make_sweep(tmp_path, 2)
    says({"100_1": JobState.RUNNING})
    (sweep.run(0).path / "record.json").write_text("{")
    assert states(sweep) == [DAMAGED, "running"]


def test_the_sweeps_journal_is_read_once_for_all_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, read = make_sweep(tmp_path, 30), []
    whole = Sweep.submissions
    monkeypatch.setattr(Sweep, "submissions", lambda self: read.append(1) or whole(self))
    assert len([read_history(sweep.run(index)).job_id for index in range(30)]) == 30
    assert len(read) == 1
    submit_array(sweep, [3], "200", token="again")
    assert read_history(sweep.run(3)).job_id == "200_0"  # what is new is seen


def test_whether_one_point_has_begun(tmp_path: Path, says: Says) -> None:
    sweep = make_sweep(tmp_path, 3, first=1)
    says({"100_0": JobState.RUNNING, "100_1": JobState.PENDING})
    assert [not_begun(sweep.run(index)) for index in range(3)] == ["waiting", None, None]
    (sweep.run(0).path / "record.json").write_text("{")
    (sweep.run(1).path / "record.json").write_text("{")
    assert [not_begun(sweep.run(index)) for index in range(3)] == ["waiting", None, None]


def test_a_point_that_the_sweep_does_not_show_yet_is_not_one_that_has_not_begun(tmp_path: Path) -> None:
    """A pilot has made the point's directory, and over NFS the journal of the search is seen later."""
    assert not_begun(Run.create(make_sweep(tmp_path, 1).path / "9")) is None


def test_numbers_in_words() -> None:
    found = {"waiting": 9, "running": 2, "done": 3, "failed": 1}
    assert summary(found) == "3/15 done, 1 failed, 2 running, 9 waiting"
    assert summary({"queued": 2}) == "0/2 done, 2 queued"
