"""Jobs in the queue without a run: which they are, and that no other one is taken for such a job."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from launcher.cli import cancel_and_prune
from launcher.cli.cancel_and_prune import (
    Orphan,
    Orphans,
    family,
    folder_of,
    look_for,
    unaccounted,
)
from launcher.errors import UnavailableError
from launcher.monitoring.run_status import JobMonitor
from launcher.runs.directory import Run, token_of
from launcher.runs.events import Submitted
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobOrigin, JobState, QueryError, SchedulerJob
from launcher.schedulers.slurm.client import parse_origins
from tests.unit.faults import FileServer
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("job_id", "number"),
    [
        ("17", "17"), ("17_3", "17"), ("17.pbs-srv", "17"), ("17[].pbs-srv", "17"), ("17[3]", "17"),
        ("17.pbs-srv_3", "17"), ("local-launcher-0123", "local-launcher-0123"),
    ],
)  # fmt: skip
def test_the_number_of_a_job(job_id: str, number: str) -> None:
    assert family(job_id) == number


def test_jobs_that_no_run_accounts_for() -> None:
    def job(job_id: str, state: JobState = JobState.RUNNING, comment: str | None = None) -> SchedulerJob:
        return SchedulerJob(job_id, state, state.name, comment=comment)

    jobs = {each.id: each for each in (
        job("1"), job("2_0"), job("2_1"), job("3"), job("4_0"), job("4_1", JobState.PENDING), job("5", JobState.DONE),
        job("6", comment="a note of mine"), job("7", comment=""), job("8", comment="launcher-0123"),
    )}  # fmt: skip
    assert sorted(unaccounted(jobs, ["1", "2"])) == ["3", "4", "8"]
    assert sorted(unaccounted(jobs, ["1.pbs-srv", "2[].pbs-srv", "4_1"])) == ["3", "8"]


def test_what_squeue_tells_of_scripts() -> None:
    text = "7|launcher-1|/runs/a b|c/script.sh\n8|(null)|wrap\n9|N/A|\n"
    assert parse_origins(text) == {
        "7": JobOrigin("7", "launcher-1", "/runs/a b|c/script.sh"),
        "8": JobOrigin("8", "", "wrap"),
        "9": JobOrigin("9", "", ""),
    }


@pytest.mark.parametrize(
    ("token", "file", "folder"),
    [
        ("{/runs/a}", "/runs/a/script.sh", "/runs/a"),
        ("{/runs/a}-r1", "/runs/a/script.sh", "/runs/a"),
        ("{/runs/lr}-0", "/runs/lr/arrays/launcher-1.sh", "/runs/lr"),
        ("{/runs/lr}-0", "/runs/lr/3/script.sh", "/runs/lr/3"),  # the only one of its array
        ("{/runs/lr/3}-r1", "/runs/lr/3/script.sh", "/runs/lr/3"),
        ("{/runs/b}", "/runs/a/script.sh", None),  # copied
        ("", "/runs/a/script.sh", None),
        ("launcher-", "/runs/a/script.sh", None),
        ("a comment", "/home/me/job.sh", None),
    ],
)
def test_where_a_job_comes_from(token: str, file: str, folder: str | None) -> None:
    for path in ("/runs/a", "/runs/b", "/runs/lr", "/runs/lr/3"):
        token = token.replace(f"{{{path}}}", token_of(path))
    assert folder_of(JobOrigin("7", token, file)) == (None if folder is None else Path(folder))


class Queue:
    """A scheduler with running jobs, each of a run in a directory."""

    def __init__(self, **jobs: Path) -> None:
        self._origins = {
            number[1:]: JobOrigin(number[1:], token_of(str(path)), f"{path}/script.sh") for number, path in jobs.items()
        }
        self.asked: list[list[str]] = []
        self.ended: list[str] = []
        self.problem = ""

    def jobs(self) -> dict[str, SchedulerJob]:
        return {number: SchedulerJob(number, JobState.RUNNING, "RUNNING") for number in self._origins}

    def origins(self, numbers: list[str]) -> dict[str, JobOrigin]:
        if self.problem:
            raise QueryError(self.problem)
        self.asked.append(list(numbers))
        return {number: self._origins[number] for number in numbers if number in self._origins}

    def cancel(self, job_id: str) -> None:
        self.ended.append(job_id)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    for name in ("kept", "elsewhere"):
        run = Run.create(tmp_path / name)
        (run.path / "record.json").write_text("{}")
    Sweep.create(tmp_path / "lr")
    (tmp_path / "lr" / "sweep.json").write_text("{}")
    made = Queue(j1=tmp_path / "kept", j2=tmp_path / "elsewhere", j3=tmp_path / "gone", j4=tmp_path / "lr")
    monkeypatch.setattr(cancel_and_prune, "schedulers", lambda others=(): {"slurm": made})
    return made


def test_a_job_is_orphaned_when_its_run_is_gone_and_is_asked_about_once(queue: Queue, tmp_path: Path) -> None:
    orphans = Orphans(JobMonitor())
    for _ in range(2):
        assert orphans.look(["1"]) == [Orphan("slurm", "3", "RUNNING", tmp_path / "gone")]
    assert queue.asked == [["2", "3", "4"], ["3"]]
    (tmp_path / "gone").mkdir()  # somebody has made it again, without a run in it
    assert len(orphans.look(["1"])) == 1
    queue.problem = "squeue failed"
    assert orphans.look(["1"]) == []


def test_a_job_is_no_orphan_because_its_folder_cannot_be_seen_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    """It may be on a file system of another cluster, or of a file server that does not answer."""
    paths = {"1": "scratch/train", "2": "stale/train", "3": "gone", "4": "gone-sweep/3", "5": "scratch/lr/3"}
    queue = Queue(**{f"j{number}": tmp_path / path for number, path in paths.items()})
    monkeypatch.setattr(cancel_and_prune, "schedulers", lambda others=(): {"slurm": queue})
    server.fail(tmp_path / "stale", number=errno.ESTALE)
    orphans = Orphans(JobMonitor())
    assert [each.job for each in orphans.look([])] == ["3", "4"]
    assert look_for("1") == tmp_path / "scratch/train"
    with pytest.raises(UnavailableError, match="stale"):
        look_for("2")
    server.recover()
    (tmp_path / "stale").mkdir()
    assert [each.job for each in orphans.look([])] == ["2", "3", "4"]


def test_the_run_of_a_job_by_its_record(tmp_path: Path) -> None:
    """Also on this machine, where no scheduler knows the job."""
    jobs_of = {"twice": ["0a1b", "0a1c"], "other": ["0a1d"], "here": ["local-launcher-e81f4eadc6d74107c554"]}
    for name, jobs in jobs_of.items():
        run = Run.create(tmp_path / name)
        run.write_record(plan_of(), {}, {"token": "t"})
        for job in jobs:
            run.journal(Submitted(job=job))
    found = {job: cancel_and_prune.run_of_job(job, tmp_path) for job in ("0a1b", "0a1c", "0a1d")}
    assert found == {"0a1b": None, "0a1c": Run(tmp_path / "twice"), "0a1d": Run(tmp_path / "other")}
    assert cancel_and_prune.run_of_job("e81f4eadc6", tmp_path) == Run(tmp_path / "here")


def test_a_job_by_its_id(queue: Queue, tmp_path: Path) -> None:
    assert look_for("2") == tmp_path / "elsewhere"
    assert look_for("3_1") == Orphan("slurm", "3", "", tmp_path / "gone")
    assert look_for("9") is None
    assert look_for("gone") is None
    queue.problem = "squeue failed"
    with pytest.raises(QueryError, match="squeue failed"):
        look_for("3")
    cancel_and_prune.cancel_orphan(Orphan("slurm", "3", "", tmp_path / "gone"))
    assert queue.ended == ["3"]
