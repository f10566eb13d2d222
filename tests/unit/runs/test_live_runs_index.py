"""Which runs may be live: whatever happens, a live run has its file, and `status` shows it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from launcher.cli import status
from launcher.cli.status import Rows
from launcher.errors import DONE
from launcher.runs import event_files, live_runs_index
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.schedulers.base import JobState, SchedulerJob
from launcher.schedulers.slurm.client import Slurm
from tests.unit.plans import plan_of
from tests.unit.sweep_runs import end, make_sweep

RECENT = 6  # as if `status` showed no more that are over
LONG_AGO = time.time() - 10 * live_runs_index.SETTLED


@pytest.fixture(autouse=True)
def scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm runs the job 7 and all elements of 100, and has forgotten all others."""

    def jobs(_: object) -> dict[str, SchedulerJob]:
        ids = ["7", *(f"100_{index}" for index in range(9))]
        return {job: SchedulerJob(job, JobState.RUNNING, "RUNNING") for job in ids}

    monkeypatch.setattr(Slurm, "jobs", jobs)
    monkeypatch.setattr(Slurm, "accounting", lambda *_: {})
    monkeypatch.setattr(status, "RECENT", RECENT)


def make(folder: Path, name: str, *, code: int | None = None, ago: float = LONG_AGO) -> Run:
    """A run that was handed over; with a code it has ended long ago."""
    run = Run.create(folder / name)
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t"})
    run.journal(kinds.Submitting(token="t"))
    (run.path / "journal.jsonl").write_text(f'{{"time": {ago}, "event": "submitted", "job": "7"}}\n')
    if code is not None:
        events = run.path / "attempts/0/events"
        events.mkdir(parents=True)
        (events / "script.jsonl").write_text(f'{{"time": {ago}, "event": "ended", "code": {code}}}\n')
        (run.path / "journal.jsonl").write_text(f'{{"time": {ago}, "event": "submitted", "job": "3"}}\n')
    return run


def shown(folder: Path, *names: str, everything: bool = False) -> dict[str, str]:
    return {row["run"]: row["state"] for row in Rows(names, folder, everything).look().rows}


def noted(folder: Path) -> set[str] | None:
    return live_runs_index.possibly_live(folder)


def age(folder: Path, seconds: float = 2 * live_runs_index.SETTLED) -> None:
    """All runs were handed over some time ago."""
    for file in (folder / live_runs_index.FOLDER).iterdir():
        with contextlib.suppress(FileNotFoundError):  # somebody removes it at this moment
            os.utime(file, (time.time() - seconds,) * 2)


def test_a_run_is_noted_when_it_is_handed_over_and_removed_when_it_was_seen_done(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    assert noted(tmp_path) is None  # nobody has looked at the whole folder yet
    assert shown(tmp_path) == {"a": "running"}
    assert noted(tmp_path) == {"a"}
    (run.path / "attempts/0/events").mkdir(parents=True)
    event_files.append(run.path / "attempts/0/events/script.jsonl", kinds.Ended(code=DONE))
    assert shown(tmp_path) == {"a": "done"}
    assert noted(tmp_path) == set()


@pytest.mark.parametrize(("handed_over", "kept"), [(0.0, True), (2 * live_runs_index.SETTLED, False)])
def test_a_run_that_failed_keeps_its_file_while_it_may_just_be_resumed(
    tmp_path: Path, handed_over: float, kept: bool
) -> None:
    make(tmp_path, "a", code=1)
    shown(tmp_path)
    live_runs_index.add(tmp_path / "a")
    age(tmp_path, handed_over)
    (tmp_path / live_runs_index.FOLDER / live_runs_index.WHOLE).touch()
    assert shown(tmp_path) == {"a": "failed"}
    assert noted(tmp_path) == ({"a"} if kept else set())


def test_an_end_of_just_now_may_not_be_the_last_word(tmp_path: Path) -> None:
    make(tmp_path, "a", code=75, ago=time.time() - 5)
    shown(tmp_path)
    age(tmp_path)
    assert (shown(tmp_path), noted(tmp_path)) == ({"a": "stopped"}, {"a"})


@pytest.mark.parametrize("everything", [False, True])
def test_other_folders_are_no_older_runs(tmp_path: Path, everything: bool) -> None:
    make(tmp_path, "a", code=0)
    (tmp_path / "mlflow").mkdir()
    for _ in range(2):  # without the index, and with it
        view = Rows((), tmp_path, everything).look()
        assert ([row["run"] for row in view.rows], view.older) == (["a"], 0)


def test_finished_runs_are_not_read_but_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3 * RECENT):
        make(tmp_path, f"gone-{number:02}", code=0)  # also by their names older than the others
    make(tmp_path, "live")
    for number in range(RECENT):
        make(tmp_path, f"new-{number:02}", code=0)
    shown(tmp_path)
    read: list[str] = []
    plan = Run.plan
    monkeypatch.setattr(Run, "plan", lambda self, *args: read.append(self.id) or plan(self, *args))
    states = shown(tmp_path)
    assert set(states) == set(read) == {"live", *(f"new-{number:02}" for number in range(RECENT))}
    assert states["live"] == "running"
    assert len(shown(tmp_path, everything=True)) == 4 * RECENT + 1


def test_many_live_runs_are_all_shown_with_the_newest_others(tmp_path: Path) -> None:
    make(tmp_path, "done", code=0)
    for number in range(2 * RECENT):
        make(tmp_path, f"live-{number}")
    for _ in range(2):
        states = shown(tmp_path)
        assert list(states.values()).count("running") == 2 * RECENT
        assert list(states)[-1] == "done"  # live ones first


@pytest.mark.parametrize("lost", ["folder", "mark", "file"])
def test_an_index_that_was_deleted_is_made_again(tmp_path: Path, lost: str) -> None:
    make(tmp_path, "live")
    for number in range(2 * RECENT):
        make(tmp_path, f"new-{number:02}", code=0)
    make(tmp_path, "failed", code=1)
    assert shown(tmp_path)["live"] == "running"
    index = tmp_path / live_runs_index.FOLDER
    if lost == "folder":
        shutil.rmtree(index)
    elif lost == "mark":
        (index / live_runs_index.WHOLE).unlink()
    else:
        (index / "live").unlink()
        assert shown(tmp_path, "live") == {"live": "running"}  # whoever sees it live notes it
    assert shown(tmp_path)["live"] == "running"
    assert "live" in (noted(tmp_path) or set())


def test_runs_that_are_older_than_the_index_are_found(tmp_path: Path) -> None:
    make(tmp_path, "live")
    for number in range(2 * RECENT):
        make(tmp_path, f"done-{number:02}", code=0)
    shutil.rmtree(tmp_path / live_runs_index.FOLDER)
    assert shown(tmp_path)["live"] == "running"
    assert noted(tmp_path) == {"live"}


def test_where_nothing_can_be_written_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "live")
    for number in range(2 * RECENT):
        make(tmp_path, f"done-{number:02}", code=0)
    shutil.rmtree(tmp_path / live_runs_index.FOLDER)
    (tmp_path / live_runs_index.FOLDER).touch()
    for _ in range(2):
        states = shown(tmp_path)
        assert (states["live"], len(states)) == ("running", RECENT + 1)


def test_a_sweep_is_noted_until_all_its_points_are_over(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 2)
    end(sweep.run(0), 0)
    assert shown(tmp_path) == {"lr-1": "1/2 done"}
    age(tmp_path)
    assert (shown(tmp_path), noted(tmp_path)) == ({"lr-1": "1/2 done"}, {"lr-1"})
    end(sweep.run(1), 0)
    assert (shown(tmp_path), noted(tmp_path)) == ({"lr-1": "2/2 done"}, set())
    sweep.run(1).journal(kinds.Submitting(token="again"))  # of a point that is resumed
    assert noted(tmp_path) == {"lr-1"}


def test_points_of_a_sweep_that_is_over_are_counted_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3)
    for index in range(3):
        end(sweep.run(index), 0)
    shown(tmp_path)
    age(tmp_path)
    for _ in range(3):  # settled, counted, not counted any more
        assert shown(tmp_path) == {"lr-1": "3/3 done"}
    script = sweep.run(2).path / "attempts/0/events/script.jsonl"
    script.write_text(script.read_text().replace('"code": 0', '"code": 1'))
    assert shown(tmp_path) == {"lr-1": "3/3 done"}
    counts = tmp_path / live_runs_index.FOLDER / ".lr-1.counts"
    counts.write_text('{"done"')
    assert shown(tmp_path) == {"lr-1": "2/3 done"}
    script.unlink()
    sweep.run(2).journal(kinds.Submitting(token="again"))  # it is resumed, and whoever looks sees that
    assert shown(tmp_path) == {"lr-1": "2/3 done"}
    assert not counts.exists()


def test_a_look_at_a_sweep_that_is_over_keeps_its_place_in_the_list(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 1)
    end(sweep.run(0), 0)
    shown(tmp_path)
    age(tmp_path)
    changed = sweep.path.stat().st_ctime_ns
    for _ in range(3):  # settled, counted, not counted any more
        shown(tmp_path)
    assert (tmp_path / live_runs_index.FOLDER / ".lr-1.counts").exists()
    assert sweep.path.stat().st_ctime_ns == changed


def test_a_run_kept_elsewhere_is_noted_where_commands_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(index))
    run = make(tmp_path / "elsewhere", "a")
    run.link(index)
    for folder in (index, tmp_path / "elsewhere"):
        assert (shown(folder), noted(folder)) == ({"a": "running"}, {"a"})
    for folder in (index, tmp_path / "elsewhere"):
        live_runs_index.remove(folder, "a", done=True)
    run.journal(kinds.Submitting(token="again"))
    assert noted(index) == noted(tmp_path / "elsewhere") == {"a"}


def test_what_was_refused_leaves_nothing(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    shutil.rmtree(run.path)
    live_runs_index.discard(run.path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_noted_and_not_there_is_removed(tmp_path: Path) -> None:
    make(tmp_path, "a")
    shown(tmp_path)
    live_runs_index.add_to(tmp_path, "gone")
    age(tmp_path)
    assert (shown(tmp_path), noted(tmp_path)) == ({"a": "running"}, {"a"})


def test_handing_over_and_removing_at_once_never_loses_a_run(tmp_path: Path) -> None:
    """The file is there whenever a hand-over has noted it, whatever others remove meanwhile."""
    make(tmp_path, "a", code=1)
    stop, lost, removed = threading.Event(), [], [0, 0]

    def removes(place: int) -> None:
        while not stop.is_set():
            live_runs_index.remove(tmp_path, "a")
            removed[place] += 1

    def hands_over() -> None:
        age(tmp_path)
        live_runs_index.add(tmp_path / "a")
        if not is_there():
            lost.append(1)

    def is_there() -> bool:
        """Who looks at the time of the file puts it aside, and back: it is seen before the others have looked often."""
        before = list(removed)
        while any(now < then + 1000 for now, then in zip(removed, before, strict=True)):
            if (tmp_path / live_runs_index.FOLDER / "a").exists():
                return True
        return False

    others = [threading.Thread(target=removes, args=(place,)) for place in range(2)]
    for each in others:
        each.start()
    for _ in range(200):
        hands_over()
    stop.set()
    for each in others:
        each.join()
    assert not lost
    assert "a" in os.listdir(tmp_path / live_runs_index.FOLDER)  # noqa: PTH208


def test_a_row_has_the_same_keys_whatever_it_tells_of(tmp_path: Path) -> None:
    make(tmp_path, "a")
    make(tmp_path, "b")
    (tmp_path / "b/record.json").write_text("{")
    make_sweep(tmp_path, 1)
    rows = [status.plain(row) for row in Rows([], tmp_path, False).look().rows]
    assert {tuple(sorted(set(row) - {"points"})) for row in rows} == {tuple(sorted(status.KEYS))}
