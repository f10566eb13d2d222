"""What `JobMonitor.cancel` does with a run whose submission is not recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.monitoring import run_status
from launcher.monitoring.run_status import JobMonitor
from launcher.runs.directory import Run
from launcher.runs.events import Submitted, Submitting
from launcher.runs.history import read_history
from tests.unit.plans import bare_plan


@pytest.mark.parametrize(
    ("meanwhile", "found", "ended"),
    [
        (None, None, []),  # interrupted before there was a job
        (None, "9", ["9"]),  # interrupted before it was recorded
        ("9", None, ["9"]),  # submitted by another command, which holds the lock
    ],
)
def test_a_run_that_is_being_submitted_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str | None, found: str | None, ended: list[str]
) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(bare_plan(run_dir=str(run.path), cluster={"scheduler": "slurm"}), {}, {"token": "token"})
    run.journal(Submitting(token="token"))
    asked: list[str] = []
    monkeypatch.setattr(run_status, "queries", lambda plan: SimpleNamespace(find=lambda *_: found, cancel=asked.append))
    monkeypatch.setattr(run_status, "forget", lambda plan: None)

    @contextlib.contextmanager
    def waits(folder: Path) -> Iterator[None]:
        if meanwhile is not None:
            run.journal(Submitted(job=meanwhile))
        yield

    monkeypatch.setattr(run_status, "only_submitter", waits)
    JobMonitor().cancel(run)
    history = read_history(run)
    assert (asked, run.has("cancelled"), history.cancelled) == (ended, True, True)
    assert history.may_have_job is bool(ended)
