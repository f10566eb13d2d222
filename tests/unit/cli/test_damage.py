"""Whatever a crash leaves of a run directory, `status` answers for all others, and never calls the run done."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.cli.status import UNREADABLE, Rows, plain, runs_table
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import FORMAT, Run
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import begin, end, make_sweep

Change = Callable[[bytes], bytes]


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm runs two jobs, and has forgotten all others."""
    jobs = {job: SchedulerJob(job, JobState.RUNNING, "RUNNING", comment="", time_left=60) for job in ("7", "100_1")}
    monkeypatch.setattr(Slurm, "jobs", lambda *_: dict(jobs))
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})


def running(folder: Path, name: str = "whole", job: str = "7") -> Run:
    """A run in its second attempt, with all files that a run may have; it is not done."""
    run = Run.create(folder / name)
    run.write_record(plan_of(), {"nodes": 1, "name": "größe"}, {"launcher": "1", "token": "t", "overrides": ["a=1"]})
    run.write_script("#!/bin/bash\n")
    run.journal(kinds.Submitting(token="t"))
    run.journal(kinds.Submitted(job=job))
    run.clear_for_resume()
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t-r1"})
    for number, code in ((0, 75), (1, None)):
        attempt = run.path / "attempts" / str(number)
        for each in ("events", "logs", "preflight"):
            (attempt / each).mkdir(parents=True)
        events = attempt / "events"
        event_files.append(events / "script.jsonl", kinds.Started(job=job, host="node1"))
        event_files.append(events / "node-0.jsonl", kinds.Met(ranks=2, members=1))
        event_files.append(events / "node-0.jsonl", kinds.Fault(error="ValueError: ü", rank=1, host="node1"))
        event_files.append(events / "rank-0.jsonl", kinds.Progress(step=1, total=9))
        event_files.append(events / "rank-0.jsonl", kinds.Evaluated(step=1, values={"loss": 0.5}))
        event_files.append(events / "rank-0.jsonl", kinds.Progress(step=5, total=9))
        event_files.append(events / "checkpoint.jsonl", kinds.Saved(step=4, bytes=3))
        (attempt / "exit_code").write_text("75\n" if code else "")
        if code:
            event_files.append(events / "script.jsonl", kinds.Ended(code=code))
    (run.path / "lease").write_text(f"{job} 1 node1\n")
    run.write_result({"loss": 1})
    return run


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


MANY = pytest.mark.parametrize("many", [8, pytest.param(80, marks=pytest.mark.slow)])


def changes(size: int, many: int) -> Iterator[Change]:
    """Cut at every byte of a short file, and at many of a long one; bytes that are no text; the end never written."""
    places = range(size) if size <= many else sorted(random.Random(size).sample(range(size), many))
    for place in places:
        yield lambda data, place=place: data[:place]  # type: ignore[misc]
    for place in list(places)[::4]:
        yield lambda data, place=place: data[:place] + b"\xff" + data[place + 1 :]  # type: ignore[misc]
        yield lambda data, place=place: data[:place] + b"\0" * (len(data) - place)  # type: ignore[misc]
        yield lambda data, place=place: data[:place] + b'{"' + data[place:]  # type: ignore[misc]


def states(folder: Path) -> dict[str, str]:
    """What `status` says, having printed its table and its JSON."""
    view = Rows([], folder, False).look()
    assert runs_table(view.rows)
    json.dumps([plain(row) for row in view.rows])
    return {row["run"]: row["state"] for row in view.rows}


@MANY
def test_a_run_cut_off_or_changed_anywhere_is_not_done_and_in_nobodys_way(tmp_path: Path, many: int) -> None:
    running(tmp_path)
    damaged = running(tmp_path, "damaged")
    assert states(tmp_path) == {"whole": "running", "damaged": "running"}
    tried = 0
    for path in files(damaged.path):
        whole = path.read_bytes()
        for change in changes(len(whole), many):
            path.write_bytes(change(whole))
            told = states(tmp_path)
            assert told.pop("whole") == "running"
            assert told.get("damaged") != "done", (path, path.read_bytes())
            tried += 1
        path.write_bytes(whole)
    assert states(tmp_path) == {"whole": "running", "damaged": "running"}
    assert tried > 25 * many


def test_a_run_of_which_something_is_missing_or_something_else_is_not_done_and_in_nobodys_way(tmp_path: Path) -> None:
    running(tmp_path)
    damaged = running(tmp_path, "damaged")
    kept = tmp_path.parent / f"{tmp_path.name}-kept"
    shutil.copytree(damaged.path, kept, symlinks=True)
    everything = sorted(path.relative_to(damaged.path) for path in damaged.path.rglob("*"))
    for relative in everything:
        for what in ("nothing", "a file", "a folder", "a link in a circle", "not ours to read"):
            path = damaged.path / relative
            if what == "not ours to read":
                path.chmod(0)
            else:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                if what == "a file":
                    path.write_text("[1]\n")
                elif what == "a folder":
                    path.mkdir()
                elif what == "a link in a circle":
                    path.symlink_to(path)
            told = states(tmp_path)
            assert told.pop("whole") == "running", (relative, what)
            assert told.get("damaged") != "done", (relative, what)
            if path.exists() and not path.is_symlink():
                path.chmod(0o700)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            before = kept / relative
            path.unlink(missing_ok=True)
            shutil.copytree(before, path) if before.is_dir() else shutil.copy2(before, path)


def test_links_that_lead_nowhere_are_in_nobodys_way(tmp_path: Path) -> None:
    running(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "latest").symlink_to(tmp_path / "latest")
    assert states(tmp_path) == {"whole": "running"}


@MANY
def test_a_sweep_cut_off_or_changed_anywhere_is_not_done_and_in_nobodys_way(tmp_path: Path, many: int) -> None:
    running(tmp_path)
    sweep = make_sweep(tmp_path, 3)
    end(sweep.run(0), 0)
    begin(sweep.run(1))
    sweep.request_local([2], restart=False)
    before = states(tmp_path)["lr-1"]
    assert before == "1/3 done"
    for path in [sweep.path / name for name in ("sweep.json", "journal.jsonl", "points")]:
        whole = path.read_bytes()
        for change in changes(len(whole), many):
            path.write_bytes(change(whole))
            told = states(tmp_path)
            assert told.pop("whole") == "running"
            assert told["lr-1"].startswith("1/3 done") or told["lr-1"] == UNREADABLE, path.read_bytes()
        path.write_bytes(whole)
    assert states(tmp_path)["lr-1"] == before
    assert Sweep(sweep.path).local_requests() == {2: 0.0}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": FORMAT + 1}, r"was written by another version \(9\.1, format 6; this one knows 5\): use that one"),
        ({"plan": {"colour": "red"}}, r"was written by another version \(9\.1\): .*colour"),
        ({"plan": None}, r"was written by another version"),
    ],
)
def test_a_run_of_another_version_is_told_as_such(tmp_path: Path, values: dict[str, object], words: str) -> None:
    running(tmp_path)
    other = running(tmp_path, "other")
    record = json.loads((other.path / "record.json").read_text())
    (other.path / "record.json").write_text(json.dumps({**record, "launcher": "9.1", **values}))
    rows = {row["run"]: row for row in Rows([], tmp_path, False).look().rows}
    assert (rows["whole"]["state"], rows["other"]["state"]) == ("running", UNREADABLE)
    assert re.search(words, rows["other"]["cause"])


@pytest.mark.parametrize(
    "line",
    [
        b'{"time": 1, "event": "ended", "code": "0"}', b'{"time": 1, "event": "ended"}',
        b'{"event": "ended", "code": 0}',
        b'{"time": "1", "event": "ended", "code": 0}', b'{"time": NaN, "event": "ended", "code": 0}',
        b'{"time": 1, "event": "ended", "code": 0', b'{"time": 1, "event": 7, "code": 0}', b"[" * 10**5, b"\0" * 80,
        b'"ended"', b"null", b'{"time": 1, "event": "submitted", "job": 7}',
    ],
)  # fmt: skip
def test_an_event_without_what_readers_rely_on_is_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"time": 1, "event": "first"}\n' + line + b'\n{"time": 2, "event": "last"}\n')
    assert [event["event"] for event in event_files.read(path)] == ["first", "last"]
