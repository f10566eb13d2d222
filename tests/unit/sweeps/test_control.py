"""Changes to a sweep that is under way: whole arrays by one command, and nothing that is over or done."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import RunError, program
from launcher.files import safe_io
from launcher.job import wait_for_others
from launcher.monitoring.run_status import JobMonitor, status_of
from launcher.monitoring.sweep_status import point_statuses
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import journal_events
from launcher.runs.point_claims import Claims, EntryKind, Manager
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.pbs.client import PBS, short
from launcher.schedulers.slurm.client import Slurm
from launcher.submission import dependencies
from launcher.sweeps import control, submit
from launcher.sweeps.submit import SubmittedSweep
from tests.unit.pilots.managers import packed_sweep
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import begin, end, make_sweep, submit_array

CANCEL = {Slurm: Slurm.cancel, PBS: PBS.cancel}
PBS_PLAN = plan_of(cluster={"scheduler": "pbs"})


class Site:
    """A scheduler with these jobs that keeps what it is told to do."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[Slurm] | type[PBS], jobs: dict[str, JobState]
    ) -> None:
        self.told: list[tuple[Any, ...]] = []
        key = short if kind is PBS else str
        found = {key(job): SchedulerJob(job, state, state.value) for job, state in jobs.items()}
        monkeypatch.setattr(kind, "jobs", lambda _: dict(found))
        monkeypatch.setattr(kind, "accounting" if kind is Slurm else "ended_all", lambda *_: {})
        monkeypatch.setattr(kind, "cancel", lambda _, *jobs: self.told.append(jobs))
        monkeypatch.setattr(kind, "throttle", lambda _, job, most: self.told.append((job, most)))


def elements(job: str, running: int, pending: int = 0) -> dict[str, JobState]:
    states = [JobState.RUNNING] * running + [JobState.PENDING] * pending
    return {f"{job}_{index}": state for index, state in enumerate(states)}


def marked(sweep: Sweep, count: int) -> list[int]:
    return [index for index in range(count) if (sweep.run(index).path / "cancelled").exists()]


@pytest.mark.parametrize(
    ("points", "told"),
    [
        (None, [("100",)]),
        ([1, 2, 3], [("100",)]),
        ([0, 1, 2, 3], [("100",)]),
        ([2, 3], [("100_2", "100_3")]),
    ],
)
def test_an_array_is_cancelled_by_one_command_when_all_that_lives_of_it_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: Sequence[int] | None, told: list[tuple[str]]
) -> None:
    sweep = make_sweep(tmp_path, 4)
    end(sweep.run(0), 0)
    site = Site(monkeypatch, Slurm, elements("100", 2, 2))
    cancelled = control.cancel(sweep, points)
    assert site.told == told
    assert marked(sweep, 4) == list(cancelled) == [index for index in points or range(4) if index]
    assert sweep.cancelled() is (points is None)
    assert all("cancelled" in [entry["event"] for entry in journal_events(sweep.run(index))] for index in cancelled)


def test_of_many_that_are_cancelled_at_once_only_those_that_cannot_be_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, 5)
    Site(monkeypatch, Slurm, elements("100", 0, 5))
    told = []

    def refuses(_: Slurm, *jobs: str) -> None:
        told.append(jobs)
        if "100_2" in jobs:
            raise QueryError("scancel failed (exit 1): Access/permission denied")

    monkeypatch.setattr(Slurm, "cancel", refuses)
    with pytest.raises(QueryError, match=r"points 2 of .* denied; cancelled: 1,3$"):
        control.cancel(sweep, [1, 2, 3])
    assert told == [("100_1", "100_2", "100_3"), ("100_1",), ("100_2",), ("100_3",)]
    assert marked(sweep, 5) == [1, 3]


def test_an_array_of_pbs_is_cancelled_by_its_id_with_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path, 3, array="150.pbs-srv", plan=PBS_PLAN)
    site = Site(monkeypatch, PBS, {"150[0].pbs-srv": JobState.RUNNING, "150[1].pbs-srv": JobState.PENDING})
    control.cancel(sweep)
    assert site.told == [("150[].pbs-srv",)]


@pytest.mark.parametrize("left", [(), ("7.pbs-srv",)])
def test_who_waits_with_an_array_that_pbs_has_deleted_is_told_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left: tuple[str, ...]
) -> None:
    """PBS deletes what waits for a job that is deleted while it waits itself."""
    first = Run.create(tmp_path / "first")
    first.write_record(dataclasses.replace(PBS_PLAN, run_id="first", run_dir=str(first.path)), {}, {"token": "t"})
    first.journal(kinds.Submitted(job="140.pbs-srv"))
    sweep = make_sweep(tmp_path, 3, array="150.pbs-srv", plan=PBS_PLAN)
    (first.path / dependencies.FOLLOWERS).mkdir()
    (first.path / dependencies.FOLLOWERS / "lr-1").write_text(str(sweep.path))
    Site(monkeypatch, PBS, {"140.pbs-srv": JobState.PENDING})
    seen = status_of(first, JobMonitor())
    monkeypatch.setattr(dependencies, "jobs_to_wait_for", lambda _: list(left))
    monkeypatch.setattr(PBS, "holds", lambda *_: False)
    control.release_followers([first.path], [seen])
    words = f"were deleted with what they waited for: `{program()} sweep rerun lr-1` submits them again"
    assert capsys.readouterr().err == f"launcher: what waits was not released: lr-1: jobs of its points 0-2 {words}\n"
    sweep.mark_cancelled(True)
    control.release_followers([first.path], [seen])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("listed", [True, False])
def test_a_job_that_was_deleted_by_hand_before_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Without job history, PBS does not say who has deleted it: it, or its owner."""
    first, waits = (Run.create(tmp_path / name) for name in ("first", "waits"))
    for run, job in ((first, "140.pbs-srv"), (waits, "150.pbs-srv")):
        run.write_record(dataclasses.replace(PBS_PLAN, run_id=run.id, run_dir=str(run.path)), {}, {"token": "t"})
        run.journal(kinds.Submitted(job=job))
    (first.path / dependencies.FOLLOWERS).mkdir()
    (first.path / dependencies.FOLLOWERS / "waits").write_text(str(waits.path))
    Site(monkeypatch, PBS, dict.fromkeys(["140.pbs-srv", *(["150.pbs-srv"] if listed else [])], JobState.PENDING))
    seen = status_of(first, JobMonitor())
    Site(monkeypatch, PBS, {})
    monkeypatch.setattr(PBS, "record", lambda *_: None)
    again: list[str] = []
    monkeypatch.setattr(wait_for_others, "_submit_again", lambda _, run, *rest: again.append(run.id))
    control.release_followers([first.path], [seen])
    assert again == (["waits"] if listed else [])


def test_points_that_were_handed_over_again_are_cancelled_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, 5, first=1)
    end(sweep.run(1), 1)
    submit_array(sweep, [1, 2], "200", token="again")
    sweep.run(3).journal(kinds.Submitted(job="300"))
    jobs = {**elements("100", 4), "200_0": JobState.PENDING, "200_1": JobState.PENDING, "300": JobState.PENDING}
    site = Site(monkeypatch, Slurm, jobs)
    assert control.cancel(sweep) == {0: "waiting", 1: "queued", 2: "queued", 3: "queued", 4: "running"}
    assert sorted(site.told) == [("100",), ("200",), ("300",)]


def test_a_point_that_is_run_again_takes_no_others_of_its_cancelled_sweep_along(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3, array=None)
    assert control.cancel(sweep) == dict.fromkeys(range(3), "waiting")
    sweep.mark_cancelled(False)  # as `rerun 1` does
    sweep.run(1).clear_marks()
    sweep.request_local([1], restart=True)
    assert [each.state for each in point_statuses(sweep)] == ["cancelled", "waiting", "cancelled"]


@pytest.mark.parametrize("chosen", [None, [0, 1, 2]])
def test_a_packed_point_that_is_run_again_takes_no_others_of_its_cancelled_sweep_along(
    tmp_path: Path, chosen: list[int] | None
) -> None:
    sweep = packed_sweep(tmp_path, 4)
    Claims(sweep.path, 0).add(3, 0, EntryKind.RELEASED, Manager(0, 0, 0, 0))  # it has begun, and waits
    assert control.cancel(sweep, chosen) == dict.fromkeys(chosen or range(4), "waiting")
    submit.start_again(sweep, [1])
    sweep.mark_cancelled(False)
    rest = "waiting" if chosen else "cancelled"
    assert [each.state for each in point_statuses(sweep)] == ["cancelled", "waiting", "cancelled", rest]
    submit.start_again(sweep, [0])
    assert point_statuses(sweep)[0].state == "waiting"


@pytest.mark.parametrize("points", [None, range(6)])
@pytest.mark.parametrize(
    ("kind", "words", "stays"),
    [
        (Slurm, "scancel: error: Unable to contact slurm controller (connect failure)", [0, 1, 4, 5]),
        (Slurm, "scancel: error: Kill job error on job id 200: Access/permission denied", [0, 1, 4, 5]),
        (Slurm, "scancel: error: Socket timed out on send/recv operation", [0, 1, 2, 3]),
        (PBS, "Connection timed out\nqdel: cannot connect to server pbs-srv (errno=110)", [0, 1, 4, 5]),
        (PBS, "qdel: Unauthorized Request  200[].pbs-srv", [0, 1, 4, 5]),
        (PBS, "qdel: End of File", [0, 1, 2, 3]),
    ],
)
def test_only_points_whose_end_may_have_been_asked_for_stay_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Slurm] | type[PBS], words: str, stays: list[int],
    points: Sequence[int] | None,
) -> None:  # fmt: skip
    """Of three arrays the second one's cancellation fails; after a lost answer the third one's is not tried."""
    end = ".pbs-srv" if kind is PBS else ""
    sweep = make_sweep(tmp_path, 6, array=None, plan=PBS_PLAN if kind is PBS else plan_of())
    for number in range(3):
        submit_array(sweep, range(2 * number, 2 * number + 2), f"{number + 1}00{end}", token=str(number))
    names = "{0}[{1}]" if kind is PBS else "{0}_{1}"
    live = {names.format(job, number) + end: JobState.PENDING for job in (100, 200, 300) for number in range(2)}
    Site(monkeypatch, kind, live)

    def answer(*command: str, **_: object) -> None:
        if command[-1].startswith("200"):
            raise QueryError(f"{command[0]} failed (exit 1): {words}")

    monkeypatch.setattr(kind, "cancel", CANCEL[kind])
    monkeypatch.setattr(kind, "run", lambda _, *command, **options: answer(*command))
    with pytest.raises(QueryError):
        control.cancel(sweep, points)
    assert marked(sweep, 6) == stays
    assert not sweep.cancelled()
    assert [each.point.index for each in point_statuses(sweep) if each.seen and each.seen.history.cancelled] == stays


def test_a_packed_sweep_is_cancelled_though_its_scheduler_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot managers see that; what may stay in the queue is named, and is cancelled by the next try."""
    sweep = packed_sweep(tmp_path, 3)
    Claims(sweep.path, 0).add(1, 0, EntryKind.CLAIMED, Manager(0, 0, 0, 0))
    for number in range(5):
        pilot = Run.create(sweep.pilot(number).path)
        pilot.write_record(dataclasses.replace(plan_of(), run_dir=str(pilot.path)), {}, {"token": "t"})
        pilot.journal(kinds.Submitted(job=f"10{number}"))
    site = Site(monkeypatch, Slurm, {f"10{number}": JobState.PENDING for number in range(5)})
    told = []

    def silent(_: Slurm, job: str) -> None:
        told.append(job)
        raise QueryError("scancel: error: Unable to contact slurm controller (connect failure)")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Slurm, "cancel", silent)
        with pytest.raises(QueryError, match=r"points of lr-1 are cancelled; .* \(lr-1-pilot-0, .*lr-1-pilot-4\)"):
            control.cancel(sweep)
    assert told == ["100", "101", "102"]  # then it is not asked again
    assert [each.state for each in point_statuses(sweep)] == ["cancelled"] * 3
    assert sweep.cancelled()
    control.cancel(sweep)
    assert site.told == [(f"10{number}",) for number in range(5)]


def test_an_array_of_another_sweep_with_the_same_number_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, 2)
    submit_array(sweep, [1], "200", token="launcher-1-1")
    site = Site(monkeypatch, Slurm, {})
    tokens = {"100_0": "launcher-2-0", "100_1": "launcher-2-0", "200_0": "launcher-1-1"}
    jobs = {job: SchedulerJob(job, JobState.PENDING, "PENDING", comment=token) for job, token in tokens.items()}
    monkeypatch.setattr(Slurm, "jobs", lambda _: jobs)
    with pytest.raises(QueryError, match=r"points 0 of lr-1: job 100_0 of slurm is another run's.*; cancelled: 1$"):
        control.cancel(sweep)
    assert site.told == [("200",)]
    assert marked(sweep, 2) == [1]


@pytest.fixture
def no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be made or written."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(Path, "touch", full)
    monkeypatch.setattr(safe_io, "write_all", full)


def test_jobs_are_cancelled_although_no_point_can_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sweep = make_sweep(tmp_path, 8, first=5)
    for index in range(5):
        sweep.run(index).journal(kinds.Submitted(job=f"30{index}"))
    jobs = {**elements("100", 1, 2), **{f"30{index}": JobState.PENDING for index in range(5)}}
    site = Site(monkeypatch, Slurm, jobs)
    (sweep.path / ".submitting").touch()
    request.getfixturevalue("no_quota")
    with pytest.raises(OSError, match="quota"):
        control.cancel(sweep)
    assert sorted(site.told) == [("100",), *((f"30{index}",) for index in range(5))]


def test_the_pilots_of_a_sweep_are_cancelled_although_no_point_can_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sweep = packed_sweep(tmp_path, 3)
    Claims(sweep.path, 0).add(1, 0, EntryKind.CLAIMED, Manager(0, 0, 0, 0))
    pilot = Run.create(sweep.pilot(0).path)
    pilot.write_record(dataclasses.replace(plan_of(), run_dir=str(pilot.path)), {}, {"token": "t"})
    pilot.journal(kinds.Submitted(job="100"))
    site = Site(monkeypatch, Slurm, {"100": JobState.RUNNING})
    (sweep.path / ".submitting").touch()
    request.getfixturevalue("no_quota")
    with pytest.raises(OSError, match="quota"):
        control.cancel(sweep)
    assert site.told == [("100",)]


def test_nothing_is_left_to_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(0), 0)
    end(sweep.run(1), 1)
    site = Site(monkeypatch, Slurm, {})
    assert (control.cancel(sweep), site.told, marked(sweep, 2)) == ({}, [], [])


def test_a_throttle_is_shared_by_the_arrays_that_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path, 12, array=None)
    for job, points in (("100", range(6)), ("200", range(6, 8)), ("300", range(8, 10))):
        submit_array(sweep, points, job, token=job)
    sweep.run(10).journal(kinds.Submitted(job="400"))
    for index in (8, 9):
        end(sweep.run(index), 0)
    jobs = {**elements("100", 1, 5), **elements("200", 0, 2), "400": JobState.RUNNING}
    site = Site(monkeypatch, Slurm, jobs)
    given = control.throttle(sweep, 5)
    assert given == site.told == [("100", 3), ("200", 1)]  # and the job of its own is the fifth
    assert sweep.manifest().parallelism == 5


def test_an_array_that_has_begun_as_a_whole_needs_no_throttle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(tmp_path, 3)
    site = Site(monkeypatch, Slurm, elements("100", 3))
    assert (control.throttle(sweep, 2), site.told) == ([], [])


# state of a point -> is it run again by default, and when it is named
AGAIN = {
    "waiting": (True, True), "unconfirmed": (True, True), "stopped": (True, True), "failed": (True, True),
    "cancelled": (False, True), "lost": (True, True), "queued": (False, False), "running": (False, False),
    "done": (False, False),
}  # fmt: skip


@pytest.fixture
def every_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep with one point of each state, in the order of AGAIN."""
    sweep = make_sweep(tmp_path, len(AGAIN), array=None)
    submit_array(sweep, range(2, 9), "100")
    sweep.submitting("t", [1])
    end(sweep.run(2), 75)
    end(sweep.run(3), 1)
    sweep.run(4).journal(kinds.Cancelled())
    begin(sweep.run(7), "100_5")
    end(sweep.run(8), 0)
    Site(monkeypatch, Slurm, {"100_4": JobState.PENDING, "100_5": JobState.RUNNING})
    assert [each.state for each in point_statuses(sweep)] == list(AGAIN)
    return sweep


def test_what_is_over_and_not_done_is_run_again(every_state: Sweep) -> None:
    seen = point_statuses(every_state)
    unasked = [number for number, (unasked, _) in enumerate(AGAIN.values()) if unasked]
    assert control.points_to_restart(seen, None) == unasked
    for number, (state, (_, allowed)) in enumerate(AGAIN.items()):
        if allowed:
            assert control.points_to_restart(seen, [number]) == [number]
        else:
            with pytest.raises(RunError, match=rf"\({number} {state}\)"):
                control.points_to_restart(seen, [number, 0])


def _keep_what_is_resubmitted(monkeypatch: pytest.MonkeyPatch, kept: list[Sequence[int]]) -> None:
    def resubmit(sweep: Sweep, points: Sequence[int], _: object) -> SubmittedSweep:
        kept.append(points)
        return SubmittedSweep(sweep, (("200", tuple(points)),), (), ())

    monkeypatch.setattr(submit, "resubmit", resubmit)


def _assert_left_out(submitted: SubmittedSweep | None, point: int) -> None:
    assert submitted is not None
    assert (submitted.left_out, submitted.is_partial) == ((point,), True)  # the command ends with 1


def test_points_that_were_never_made_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, again = make_sweep(tmp_path, 3, array=None), list[Sequence[int]]()
    _keep_what_is_resubmitted(monkeypatch, again)
    (sweep.run(1).path / "record.json").unlink()
    _assert_left_out(control.rerun(sweep, None), 1)
    assert again == [[0, 2]]
    end(sweep.run(0))
    end(sweep.run(2))
    for points in (None, [1]):
        with pytest.raises(RunError, match="points 1 have not been made: repeat the sweep's command"):
            control.rerun(sweep, points)
    sweep = make_sweep(tmp_path, 3, array=None, name="lr-2")
    (sweep.run(1).path / "record.json").unlink()
    assert control.cancel(sweep) == dict.fromkeys(range(3), "waiting")


@pytest.mark.parametrize("damaged", [False, True])
def test_an_array_whose_submitter_was_killed_is_found_before_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    sweep.submitting("t", [0, 1])
    site = Site(monkeypatch, Slurm, elements("100", 0, 2))
    monkeypatch.setattr(Slurm, "find", lambda _, token, name: {"t": "100"}[token])
    if damaged:
        (sweep.run(0).path / "record.json").write_text("")
    assert control.cancel(sweep) == dict.fromkeys(range(damaged, 2), "queued")
    assert site.told == [("100",)]


def test_a_sweep_that_is_cancelled_while_another_command_submits_it_stays_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = packed_sweep(tmp_path, 3)

    @contextlib.contextmanager
    def after_another_one(_: Path) -> Iterator[None]:
        sweep.mark_cancelled(False)  # as each submission does
        yield

    monkeypatch.setattr(control, "only_submitter", after_another_one)
    control.cancel(sweep)
    assert [each.state for each in point_statuses(sweep)] == ["cancelled"] * 3


@pytest.mark.parametrize("packed", [False, True])
def test_a_point_whose_record_is_damaged_does_not_keep_the_others_from_running_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], packed: bool
) -> None:
    sweep, again = packed_sweep(tmp_path, 3) if packed else make_sweep(tmp_path, 3), list[Sequence[int]]()
    Site(monkeypatch, Slurm, {})
    _keep_what_is_resubmitted(monkeypatch, again)
    for index in range(3):
        end(sweep.run(index), 1)
    (sweep.run(1).path / "record.json").write_text("{")
    _assert_left_out(control.rerun(sweep, None), 1)
    assert again == [[0, 2]]
    assert f"point 1 is left out: {sweep.run(1).path}/record.json cannot be read" in capsys.readouterr().err
    with pytest.raises(RunError, match=r"1/record\.json cannot be read"):
        control.rerun(sweep, [0, 1])
    for index in (0, 2):
        (sweep.run(index).path / "record.json").write_text("{")
    with pytest.raises(RunError, match=r"0/record\.json cannot be read"):  # not that there is nothing to do
        control.rerun(sweep, None)
