"""A scheduler's answer: how long it is good, who may read it, and that several commands ask once."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from launcher.schedulers import job_cache
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.job_cache import JobSnapshot, SharedSnapshot, interval, take_snapshot

JOBS = {
    "7": SchedulerJob("7", JobState.RUNNING, "RUNNING", "", "", 60),
    "8": SchedulerJob("8", JobState.FAILED, "F", signal=9),
}


class Scheduler:
    """Counts how often it is asked."""

    def __init__(self, problem: str = "", slow: float = 0.0) -> None:
        self.queries, self.problem, self.slow = 0, problem, slow

    def __call__(self) -> dict[str, SchedulerJob]:
        self.queries += 1
        time.sleep(self.slow)
        if self.problem:
            raise QueryError(self.problem)
        return dict(JOBS)


def the_file(cache: Path) -> Path:
    (path,) = (cache / "queries").glob("*.json")
    return path


@pytest.mark.parametrize(
    ("unchanged", "took", "seconds"),
    [
        (0, 0, 2),
        (1, 0, 2.6),
        (5, 0, 7.4),
        (13, 0, 60),
        (10**6, 0, 60),
        (0, 1, 10),
        (0, 0.1, 2),
        (0, 10, 60),
        (5, 3, 30),
    ],
)
def test_an_answer_is_good_for_longer_while_nothing_changes_or_asking_takes_long(
    unchanged: int, took: float, seconds: float
) -> None:
    assert interval(unchanged, took) == pytest.approx(seconds, abs=0.1)


def test_what_one_command_has_heard_another_is_told(own_cache: Path) -> None:
    first, second = Scheduler(), Scheduler()
    result = SharedSnapshot("slurm").get(60, first, 1)
    again = SharedSnapshot("slurm").get(60, second, 1)
    assert (first.queries, second.queries) == (1, 0)
    assert (result.jobs, result.own, again.own) == (JOBS, True, False)
    assert again.jobs == JOBS
    assert again.began == result.began
    assert stat.S_IMODE(the_file(own_cache).stat().st_mode) == 0o600
    assert stat.S_IMODE((own_cache / "queries").stat().st_mode) == 0o700


def test_another_scheduler_is_asked_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    SharedSnapshot("pbs").get(60, scheduler, 1)
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    SharedSnapshot("slurm").get(60, scheduler, 1)
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 4


def test_an_answer_that_is_old_or_from_before_what_one_knows_is_asked_for_again() -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    SharedSnapshot("slurm").get(-1, scheduler, 1)
    assert scheduler.queries == 2
    SharedSnapshot("slurm").get(60, scheduler, 1, newer=time.time())
    assert scheduler.queries == 3
    SharedSnapshot("slurm").forget()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 4


def test_eight_commands_at_once_ask_once() -> None:
    scheduler, result = Scheduler(slow=0.2), []
    commands = [
        threading.Thread(target=lambda: result.append(SharedSnapshot("slurm").get(60, scheduler, 60))) for _ in range(8)
    ]
    for each in commands:
        each.start()
    for each in commands:
        each.join()
    assert scheduler.queries == 1
    assert [len(each.jobs) for each in result] == [2] * 8


def test_a_command_that_waits_for_one_that_hangs_queries_itself() -> None:
    began, over, scheduler = threading.Event(), threading.Event(), Scheduler()

    def hangs() -> dict[str, SchedulerJob]:
        began.set()
        over.wait(60)
        return {}

    other = threading.Thread(target=lambda: SharedSnapshot("slurm").get(60, hangs, 1))
    other.start()
    assert began.wait(60)
    assert SharedSnapshot("slurm").get(60, scheduler, 0.1).jobs == JOBS
    assert scheduler.queries == 1
    over.set()
    other.join()


def test_a_failed_query_is_shared_with_the_jobs_of_the_last_good_one() -> None:
    SharedSnapshot("slurm").get(60, Scheduler(), 1)
    silent, other = Scheduler("squeue did not answer within 10 s"), Scheduler()
    result = SharedSnapshot("slurm").get(-1, silent, 1)
    again = SharedSnapshot("slurm").get(60, other, 1)
    assert (silent.queries, other.queries) == (1, 0)
    assert result.problem == again.problem == "squeue did not answer within 10 s"
    assert set(result.jobs) == set(again.jobs) == {"7", "8"}
    assert again.began is not None
    assert again.began < again.completed


def test_without_an_answer_before_there_is_none() -> None:
    result = take_snapshot(Scheduler("no"), None)
    assert (result.jobs, result.began, result.problem) == ({}, None, "no")
    assert take_snapshot(Scheduler(), result).jobs == JOBS


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_to_is_not_believed(own_cache: Path, which: str, mode: int) -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    path = the_file(own_cache) if which == "file" else own_cache / "queries"
    path.chmod(path.stat().st_mode | mode)
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 2


def test_somebody_elses_file_and_a_link_are_not_believed(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    file = the_file(own_cache)
    elsewhere = file.rename(own_cache / "elsewhere")
    file.symlink_to(elsewhere)
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 2
    before = os.fstat

    def foreign(descriptor: int) -> os.stat_result:
        status = list(before(descriptor))
        return os.stat_result([*status[:4], status[4] + 1, *status[5:]])

    monkeypatch.setattr(job_cache.os, "fstat", foreign)
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 3


@pytest.mark.parametrize("completed", [0.0, 1e12])
def test_a_result_with_an_impossible_time_is_not_used(own_cache: Path, completed: float) -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    values = json.loads(the_file(own_cache).read_text())
    the_file(own_cache).write_text(json.dumps({**values, "completed": completed}))
    SharedSnapshot("slurm").get(60, scheduler, 1)
    assert scheduler.queries == 2


def test_a_damaged_answer_is_asked_for_again(own_cache: Path) -> None:
    scheduler = Scheduler()
    SharedSnapshot("slurm").get(60, scheduler, 1)
    whole = the_file(own_cache).read_bytes()
    for place in range(len(whole)):
        the_file(own_cache).write_bytes(whole[:place])
        result = SharedSnapshot("slurm").get(60, scheduler, 1)
        assert result.jobs.keys() == JOBS.keys()
    assert scheduler.queries == 1 + len(whole)


def test_without_a_cache_each_command_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAUNCHER_CACHE_DIR", str(tmp_path / "file"))
    scheduler = Scheduler()
    assert [SharedSnapshot("slurm").get(60, scheduler, 1).jobs for _ in range(2)] == [JOBS, JOBS]
    assert scheduler.queries == 2


def test_an_answer_from_the_future_is_not_good() -> None:
    assert not JobSnapshot(JOBS, 100, 100).is_fresh(60, now=50)
    assert JobSnapshot(JOBS, 100, 100).is_fresh(60, now=160)
    assert not JobSnapshot(JOBS, 100, 100).is_fresh(60, now=161)
