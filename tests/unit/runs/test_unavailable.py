"""What cannot be read now decides nothing: no run is lost, done, failed, started twice or given up because of it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher import errors
from launcher.agent.policy import has_saved
from launcher.cli import wait
from launcher.cli.status import Rows
from launcher.config.schema import Program
from launcher.environment import secrets
from launcher.errors import RESUME, RunError, UnavailableError
from launcher.failures.codes import NextReason
from launcher.job import requeue
from launcher.job import wait_for_others as gate
from launcher.job.requeue import What
from launcher.monitoring.sweep_status import point_statuses
from launcher.runs import directory, lease_and_locks, live_runs_index, user_checkpoints
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run, report_start_failure
from launcher.runs.events import Stopped
from launcher.runs.history import journal_events
from launcher.runs.lookup import all_runs, find
from launcher.runs.sweep_directory import SweepManifest
from launcher.schedulers import executor as executor_module
from launcher.schedulers.base import JobState, QueryError, QueryTimeout, SchedulerJob
from launcher.schedulers.executor import JobWatcher, RunExecutor
from launcher.schedulers.slurm.client import Slurm
from launcher.submission import dependencies, render
from launcher.sweeps import local_runner
from launcher.sweeps.control import points_to_restart
from launcher.worker import user_script
from tests.unit.faults import FOR_EVER, FileServer
from tests.unit.plans import bare_plan, plan_of, with_fields
from tests.unit.sweep_runs import begin, end, make_sweep

NUMBERS = pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm runs one job, and has forgotten all others."""
    monkeypatch.setattr(Slurm, "jobs", lambda *_: {"7": SchedulerJob("7", JobState.RUNNING, "RUNNING", time_left=60)})
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})


def make_run(folder: Path, name: str = "run", *, job: str = "7", **plan: Any) -> Run:
    run = Run.create(folder / name)
    run.write_record(
        bare_plan(run_id=name, run_dir=str(run.path), **plan), {}, {"launcher": "1", "token": "t", "overrides": []}
    )
    run.journal(kinds.Submitting(token="t"))
    run.journal(kinds.Submitted(job=job))
    return run


def in_attempt(run: Run, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> Attempt:
    """This process belongs to an attempt, in which what may pass is waited for (without taking any time)."""
    for name, value in (("RUN_DIR", str(run.path)), ("ATTEMPT", str(number)), ("JOB_ID", "7")):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    return Attempt(run, number)


# -- the lease


@NUMBERS
def test_a_lease_that_cannot_be_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, number: int
) -> None:
    run = make_run(tmp_path)
    in_attempt(run, monkeypatch)
    path = run.path / "lease"
    path.write_text("7 0 node1\n")
    monkeypatch.setenv("LAUNCHER_LEASE", str(path))
    server.fail(path, 3, number)
    lease_and_locks.require()
    assert len(server.slept) == 3
    server.fail(path, FOR_EVER, number)
    with pytest.raises(UnavailableError):
        lease_and_locks.require()
    slept = len(server.slept)
    assert lease_and_locks.lost() is None
    assert len(server.slept) == slept
    server.recover()
    path.write_text("8 1 node2\n")
    with pytest.raises(lease_and_locks.LeaseLost):
        lease_and_locks.require()
    assert lease_and_locks.lost() is not None
    path.unlink()
    assert lease_and_locks.lost() is None


def test_a_rank_that_cannot_read_may_be_points_to_restart() -> None:
    assert user_script.is_final(RunError("no"))
    assert not user_script.is_final(UnavailableError("not now"))


@NUMBERS
@pytest.mark.parametrize("part", ["record.json", "journal.jsonl", "events", "script.jsonl", "attempts"])
def test_a_run_that_cannot_be_read_is_unknown_and_the_others_are_shown(
    tmp_path: Path, server: FileServer, number: int, part: str
) -> None:
    make_run(tmp_path, "other")
    run = make_run(tmp_path)
    begin(run, "7")
    server.fail(f"run/{part}" if part != "script.jsonl" else "run/attempts/0/events/script.jsonl", FOR_EVER, number)
    if part == "events":
        server.fail("run/attempts/0/events", FOR_EVER, number)
    rows = {row["run"]: row for row in Rows([], tmp_path, everything=False).look().rows}
    assert {name: row["state"] for name, row in rows.items()} == {"run": "unknown", "other": "running"}
    assert "cannot be read now" in rows["run"]["cause"]
    assert not rows["run"]["over"]
    assert "run" in (live_runs_index.possibly_live(tmp_path) or ())
    server.recover()
    assert {row["state"] for row in Rows([], tmp_path, everything=False).look().rows} == {"running"}


def test_a_run_whose_folder_cannot_be_looked_at_stays_in_the_index(tmp_path: Path, server: FileServer) -> None:
    make_run(tmp_path)
    assert Rows([], tmp_path, everything=False).look().rows[0]["state"] == "running"
    server.fail(tmp_path / "run")
    assert [row["state"] for row in Rows([], tmp_path, everything=False).look().rows] == ["unknown"]
    assert live_runs_index.possibly_live(tmp_path) == {"run"}
    assert [run.id for run in all_runs(tmp_path)] == ["run"]


def test_a_name_is_not_called_unknown_when_nobody_can_tell(tmp_path: Path, server: FileServer) -> None:
    make_run(tmp_path)
    server.fail("record.json")
    for name in ("run", "ru", str(tmp_path / "run")):
        with pytest.raises(RunError, match="cannot be read now") if name != "ru" else pytest.raises(RunError):
            find(name, tmp_path).record()


def test_who_follows_a_run_waits_until_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    end(run, 0, job="7")
    server.fail("record.json")
    looks = iter([None, None, server.recover])
    monkeypatch.setattr(time, "sleep", lambda _: (next(looks) or (lambda: None))())
    assert wait.follow_to_end(run, foreground=False, output=False) == 0
    assert capsys.readouterr().err.count("waiting: ") == 1


# -- what a run goes on by


def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int = 3, **plan: Any) -> Run:
    """A run that has stopped early, three times without getting further."""
    run = make_run(tmp_path, **plan)
    for number in range(attempts):
        events = begin(run, "7", number=number)
        if number < attempts - 1:
            requeue.Events(Attempt(run, number), "requeue")(Stopped(step=number, saved=-1, preempted=False))
        assert events
    in_attempt(run, monkeypatch, attempts - 1)
    monkeypatch.setattr(requeue, "_ending", lambda *_: None)
    requeued = requeue.continues(What.ELSEWHERE, NextReason.REQUEUED)
    monkeypatch.setattr(requeue, "_continue_elsewhere", lambda *_: requeued)
    return run


@NUMBERS
@pytest.mark.parametrize(
    "part", ["run/cancelled", "run/stop", "run/attempts/0", "run/attempts/1/events/requeue.jsonl", "run/record.json"]
)
def test_a_run_is_neither_started_again_nor_given_up_by_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, number: int, part: str
) -> None:
    run = stopped(tmp_path, monkeypatch)
    (run.path / "checkpoints" / "step-5").mkdir(parents=True)
    monkeypatch.setattr(requeue.checkpoints, "newest_step", lambda _: 5)
    server.fail(part, FOR_EVER, number)
    assert requeue.main(str(run.path), stop_requested=False) == What.STAYS == RESUME
    server.recover()
    server.fail(part, 2, number)
    assert requeue.main(str(run.path), stop_requested=False) == What.ELSEWHERE


def test_a_cancelled_run_is_not_started_again_when_its_mark_is_hard_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    run = stopped(tmp_path, monkeypatch)
    run.mark("cancelled")
    monkeypatch.setattr(requeue.checkpoints, "newest_step", lambda _: 5)
    server.fail("run/cancelled", 2)
    assert requeue.main(str(run.path), stop_requested=False) == What.STAYS


def test_saves_that_cannot_be_looked_at_do_not_count_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    plan = plan_of(workload=Program("program", "m:f", seed=0, script="train.py", checkpoint="out/*"))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "a.pt").touch()
    plan = with_fields(plan, checkpoint={"dir": str(folder)}, workdir=str(tmp_path))
    assert user_checkpoints.newest(plan) > 0
    assert has_saved(plan, 5) is True
    assert has_saved(plan, 1 << 62) is False
    server.fail("checkpoints")
    with pytest.raises(OSError, match="Input/output error"):
        user_checkpoints.newest(plan)
    assert has_saved(plan, 5) is None


# -- runs that wait for others


def waits_for(run: Run, other: Run) -> Run:
    values = json.loads((run.path / "record.json").read_text())
    values["plan"]["after"] = [f"ok:{other.path}"]
    (run.path / "record.json").write_text(json.dumps(values))
    return run


@NUMBERS
def test_a_run_is_not_failed_for_another_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, number: int
) -> None:
    other, run = make_run(tmp_path, "other"), make_run(tmp_path, job="8")
    waits_for(run, other)
    end(other, 0, job="7")
    (run.path / "attempts/0/events").mkdir(parents=True)
    in_attempt(run, monkeypatch)
    for part in ("other/record.json", "other/sweep.json", "run/cancelled", "run/attempts"):
        server.recover()
        server.fail(part, FOR_EVER, number)
        assert gate.main() == RESUME
    server.recover()
    server.fail("other/record.json", 2, number)
    assert gate.main() == 0


def test_those_who_wait_are_told_or_named(tmp_path: Path, server: FileServer) -> None:
    run = make_run(tmp_path)
    assert dependencies.update_followers(run.path) == []
    (run.path / dependencies.FOLLOWERS).mkdir()
    (run.path / dependencies.FOLLOWERS / "next").write_text(str(tmp_path / "next"))
    server.fail(dependencies.FOLLOWERS)
    assert "cannot be read now" in dependencies.update_followers(run.path)[0]


# -- sweeps


@NUMBERS
@pytest.mark.parametrize("part", ["lr-1/0/record.json", "lr-1/0/attempts", "lr-1/0/journal.jsonl"])
def test_a_point_that_cannot_be_read_is_unknown_and_gets_no_second_job(
    tmp_path: Path, server: FileServer, number: int, part: str
) -> None:
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(1), 1)
    server.fail(part, FOR_EVER, number)
    seen = point_statuses(sweep)
    assert [each.state for each in seen] == ["unknown", "failed"]
    assert points_to_restart(seen, None) == [1]
    with pytest.raises(RunError, match="0 unknown"):
        points_to_restart(seen, [0])


def test_a_sweep_that_cannot_be_read_is_not_made_anew(tmp_path: Path, server: FileServer) -> None:
    sweep = make_sweep(tmp_path, 2)
    before = (sweep.path / "sweep.json").read_bytes()
    server.fail("sweep.json")
    for read in (sweep.recorded, sweep.manifest, sweep.points, lambda: journal_events(sweep.run(0))):
        with pytest.raises(UnavailableError):
            read()
    with pytest.raises(UnavailableError):
        Run(sweep.path / "0").is_point  # noqa: B018
    assert Run(sweep.path / "0").id == "lr-1/0"
    assert [row["state"] for row in Rows([], tmp_path, everything=False).look().rows] == ["unknown"]
    server.recover()
    assert (sweep.path / "sweep.json").read_bytes() == before
    assert isinstance(sweep.manifest(), SweepManifest)


@pytest.mark.parametrize("part", ["lr-1/cancelled", "lr-1/1/cancelled", "lr-1/points", "sweep.json"])
def test_points_are_started_when_their_sweep_can_be_read_and_not_if_they_were_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer, part: str
) -> None:
    sweep = make_sweep(tmp_path, 2, array=None)
    sweep.request_local([1], restart=False)
    started: list[int] = []

    def start(run: Run, *_: Any, resumed: bool) -> None:
        started.append(int(run.path.name))
        run.journal(kinds.ProcessStarted(pid=1, start=0, host="node1"))

    monkeypatch.setattr(local_runner, "start", start)
    monkeypatch.setattr(local_runner.time, "sleep", lambda _: server.recover())
    server.fail(part)
    assert local_runner.main(str(sweep.path)) == 0
    assert started == [1]


# -- what is kept


@NUMBERS
def test_secrets_of_a_run_that_cannot_be_seen_stay(tmp_path: Path, server: FileServer, number: int) -> None:
    run = make_run(tmp_path)
    base = tmp_path / "secrets"
    path = secrets.file_of(str(run.path), str(base))
    secrets.write(f"# {run.path}\n", path)
    os.utime(path, (0, 0))
    for part in (f"{run.path}", f"{run.path}/cancelled", f"{run.path}/attempts"):
        server.recover()
        server.fail(part, FOR_EVER, number)
        secrets.prune(base)
        assert path.exists()
    server.recover()
    run.mark("cancelled")
    secrets.prune(base)
    assert not path.exists()


def test_the_first_record_is_not_written_over_when_records_cannot_be_counted(
    tmp_path: Path, server: FileServer
) -> None:
    run = make_run(tmp_path)
    run.clear_for_resume()
    first = (run.path / "record-0.json").read_bytes()
    (run.path / "record.json").write_bytes(first.replace(b'"nodes": 1', b'"nodes": 2'))
    server.fail(f"{run.path}")
    for call in (run.clear_for_resume, run.restore_record, run.first_plan):
        with pytest.raises((RunError, OSError)):
            call()
    server.recover()
    assert (run.path / "record-0.json").read_bytes() == first


def test_the_exit_code_is_written_when_the_file_server_is_back(
    tmp_path: Path, server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    (run.path / "attempts/0").mkdir()
    server.fail("exit_code", 2)
    Attempt(run, 0).write_exit_code(75)
    assert (run.path / "attempts/0/exit_code").read_text() == "75\n"
    server.fail("exit_code")
    Attempt(run, 0).write_exit_code(1)
    assert "the exit code 1 cannot be written" in capsys.readouterr().err


def test_a_function_on_pbs_that_went_on_is_not_over_because_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    class Queue:
        def jobs(self) -> dict[str, SchedulerJob]:
            return {"2": SchedulerJob("2", JobState.RUNNING, "R")}

        def key(self, job_id: str) -> str:
            return job_id.partition(".")[0]

    (tmp_path / "resubmitted.txt").write_text("2.server\n")
    watcher = JobWatcher(Queue())  # type: ignore[arg-type]
    watcher.register("1.server", tmp_path / "resubmitted.txt")
    assert watcher.current("1.server") == "2.server"
    server.fail("resubmitted.txt")
    for _ in range(3):
        watcher.update()
    assert not watcher.is_done("1.server", mode="cache")
    with pytest.raises(QueryError):
        watcher.current("1.server")


def test_a_function_ends_though_accounting_never_answers() -> None:
    class Queue:
        def jobs(self) -> dict[str, SchedulerJob]:
            return {}

        def key(self, job_id: str) -> str:
            return job_id

        def ended_all(self, job_ids: Sequence[str]) -> dict[str, SchedulerJob]:
            raise QueryTimeout("qacct takes longer than 60 s")

    watcher = JobWatcher(Queue())  # type: ignore[arg-type]
    watcher.register_job("1")
    watcher.update()
    assert not watcher.is_done("1", mode="cache")  # the first query may have been too early
    watcher.update()
    assert watcher.is_done("1", mode="cache")
    assert watcher.get_state("1") == "UNKNOWN"


# -- the start of a node


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("not now"), RESUME),
        (OSError(errno.EIO, "no"), RESUME),
        (OSError(errno.ENOENT, "no"), errors.NO_RETRY),
        (RunError("others can write to it"), errors.NO_RETRY),
    ],
)
def test_an_agent_that_cannot_begin_is_given_up_only_if_a_retry_would_fail_too(error: Exception, code: int) -> None:
    assert report_start_failure(None, "agent", error) == code


@NUMBERS
def test_a_folder_of_which_nobody_can_tell_is_not_called_unsafe(
    tmp_path: Path, server: FileServer, number: int
) -> None:
    run = make_run(tmp_path)
    server.fail(run.path, 2, number)
    run.require_private()
    server.fail(run.path, FOR_EVER, number)
    with pytest.raises(UnavailableError):
        run.require_private()
    server.recover()
    run.path.chmod(0o777)
    with pytest.raises(RunError, match="others can write"):
        directory.require_private(run.path)


def test_nothing_is_submitted_while_nobody_can_tell_whether_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    run = make_run(tmp_path)
    executor = RunExecutor(run, run.plan(), "t", scripts=render, resumed=True)
    monkeypatch.setattr(Slurm, "find", lambda self, token, name: None)
    server.fail(run.path / "attempts")
    looked: list[Callable[[], str | None]] = []

    def submit_once(send: object, find: Callable[[], str | None], *, before: bool) -> str:
        looked.append(find)
        return ""

    monkeypatch.setattr(executor_module, "submit_once", submit_once)
    executor._send(run.path / "script.sh")
    with pytest.raises(QueryError, match="cannot be read now"):  # which submit_once waits for
        looked[0]()
    server.recover()
    assert looked[0]() is None
