"""`prune` removes what is over and old, and nothing that anybody may still need."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import cancel_and_prune, commands
from launcher.cli.cancel_and_prune import PruneCandidate, named_by, needs, reason_to_keep
from launcher.errors import ConfigError
from launcher.monitoring import run_status
from launcher.monitoring.run_status import JobMonitor
from launcher.paths import SENDING
from launcher.plan.plan import PILOT_ENTRY, JobPlan
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.lease_and_locks import SUBMITTING, only_submitter
from launcher.schedulers.base import JobState
from launcher.submission import dependencies
from tests.unit.faults import FileServer
from tests.unit.plans import plan_of, with_fields
from tests.unit.sweep_runs import end, make_sweep

DAY = 86400.0
OLD = time.time() - 40 * DAY
HERE = plan_of(cluster={"scheduler": "local"})


def old(*states: str, **fields: Any) -> PruneCandidate:
    return PruneCandidate(Path("/runs/a"), frozenset(states), **{"last_active": 100.0, **fields})


@pytest.mark.parametrize(
    ("found", "states", "why"),
    [
        (old("done"), ("done",), None),
        (old("done", "failed"), ("done", "failed"), None),
        (old("failed"), ("done",), "it is failed"),
        (old("done", "failed"), ("done",), "it is failed"),  # a point of a sweep
        (old("running"), ("running",), "it is running"),
        (old("done", "waiting"), ("done", "waiting"), "it is waiting"),
        (old("unconfirmed"), ("done",), "it is unconfirmed"),
        (old("unknown"), ("done",), "it is unknown"),
        (old("done", "damaged"), ("done", "damaged"), "it cannot be read"),
        (old(error="/runs/a is damaged"), ("done",), "/runs/a is damaged"),
        (old("done", needed_by=("b",)), ("done",), "b needs it"),
        (old("done", needed_by=("b", "c")), ("done",), "b, c need it"),
        (old("done", needed_by=tuple("abcdefghijkl")), ("done",), "a, b, c, d, e, f, g, h, i, j and 2 more need it"),
        (old("done", unread=("b",)), ("done",), "b cannot be read now, and may need it"),
        (old("running", unread=("b",)), ("done",), "it is running"),
        (old("done", last_active=300.0), ("done",), "it is younger"),
        (old("done", last_active=None), ("done",), "its age is not known"),
    ],
)
def test_why_a_run_is_kept(found: PruneCandidate, states: tuple[str, ...], why: str | None) -> None:
    assert reason_to_keep(found, 200.0, states) == why


def test_what_plans_refer_to(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c", "lr")]
    plans = [
        ("w", dataclasses.replace(HERE, after=(f"ok:{tmp_path}/a", f"any:{tmp_path}/lr/3"))),
        (
            "x",
            with_fields(HERE, workload={"params": {**HERE.workload.params, "baseline": f"{tmp_path}/b/results.json"}}),
        ),
        ("y", with_fields(HERE, checkpoint={"dir": f"{tmp_path}/b/checkpoints"})),
        ("c", with_fields(HERE, checkpoint={"dir": f"{tmp_path}/c/checkpoints"})),  # its own
        ("lr/0", with_fields(HERE, checkpoint={"dir": f"{tmp_path}/lr/0/checkpoints"})),
    ]
    users = [(name, named_by(plan)) for name, plan in plans]
    assert needs(users, folders) == {tmp_path / "a": ["w"], tmp_path / "lr": ["w"], tmp_path / "b": ["x", "y"]}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Makes a run that ended 40 days ago; `code=None`: it has not ended."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus())

    def made(name: str, code: int | None = 0, plan: JobPlan = HERE, folder: Path = tmp_path) -> Run:
        run = Run.create(folder / name)
        run.write_record(dataclasses.replace(plan, run_id=name, run_dir=str(run.path)), {}, {"token": "t"})
        events = run.path / "attempts/0/events"
        events.mkdir(parents=True)
        written = [
            (run.path / "journal.jsonl", kinds.Submitted(job="7")),
            (events / "s.jsonl", kinds.Started(job="7")),
        ]
        written += [] if code is None else [(events / "s.jsonl", kinds.Ended(code=code))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: OLD)
            for path, event in written:
                event_files.append(path, event)
        return run

    return made


def pruned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert commands.main(["prune", "--older-than", "30d", *words]) == 0
    return capsys.readouterr().out


def test_it_lists_and_removes_only_with_delete(
    make: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, failed = make("done"), make("failed", code=1)
    done.link(tmp_path)
    listed = pruned(capsys)
    assert listed.startswith(" SIZE  STATE         RUN\n") and "done          done\n" in listed
    assert "failed        failed\n" in listed
    assert "2 runs, " in listed
    assert "--delete removes them" in listed
    assert done.path.exists()
    assert "removed: 1 run, " in pruned(capsys, "--state", "failed", "--delete")
    assert (done.path.exists(), failed.path.exists()) == (True, False)
    assert "removed: 1 run, " in pruned(capsys, "--delete")
    assert [path.name for path in tmp_path.iterdir() if path.name != ".live"] == []  # `latest` led to it
    assert "nothing to remove" in pruned(capsys)
    assert commands.main(["prune", "--older-than", "0d"]) == 0  # of any age
    with pytest.raises(ConfigError, match="say how old"):
        commands.main(["prune", "--delete"])


def test_what_somebody_needs_or_nobody_knows_stays(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = make("needed")
    waits = make("waits", None, dataclasses.replace(plan_of(), after=(f"ok:{needed.path}",)))
    also_needed = make("needed-elsewhere")
    make("other", None, dataclasses.replace(plan_of(), after=(f"ok:{also_needed.path}",)), tmp_path / "elsewhere")
    (also_needed.path / "followers").mkdir()
    (also_needed.path / "followers/other").write_text(str(tmp_path / "elsewhere/other"))
    damaged = make("damaged")
    (damaged.path / "record.json").write_text("{")
    theirs = make("open-to-all")
    theirs.path.chmod(0o777)
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.PENDING))
    shown = pruned(capsys, "--delete")
    assert "needed is kept: waits needs it" in shown
    assert "needed-elsewhere is kept: other needs it" in shown
    assert "damaged is kept: " in shown
    assert "open-to-all is kept: everybody can write to" in shown
    assert "removed: 0 runs" in shown
    assert all(run.path.exists() for run in (needed, waits, also_needed, damaged, theirs))


def test_nothing_is_removed_because_it_cannot_be_read_or_is_being_submitted(
    make: Callable[..., Run], server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("a")
    server.fail(run.path / "record.json", number=errno.EIO)
    assert "removed: 0 runs" in pruned(capsys, "--delete")
    server.recover()
    holder = os.open(run.path / SUBMITTING, os.O_RDWR | os.O_CREAT)
    with only_submitter(run.path):
        shown = pruned(capsys, "--delete")
    os.close(holder)
    assert "a is kept: it is being submitted" in shown
    assert run.path.exists()


def test_a_sweep_goes_as_a_whole_and_only_if_all_its_points_are_over(
    tmp_path: Path, make: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: OLD)
        whole, half = (make_sweep(tmp_path, 2, name=name, plan=HERE) for name in ("whole", "half"))
        for run in (whole.run(0), whole.run(1), half.run(0)):
            end(run)
    half.request_local([1], restart=False)
    shown = pruned(capsys, "--delete")
    assert "done          whole\n" in shown
    assert not whole.path.exists()
    assert half.path.exists()


def test_a_sweep_is_removed_though_no_file_can_be_made(
    tmp_path: Path, make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path, 1, name="a", plan=HERE)
    end(sweep.run(0))
    (sweep.path / SUBMITTING).touch()  # by its submission
    opened = os.open

    def full(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", full)
    (found,) = cancel_and_prune.survey(tmp_path, JobMonitor())
    assert cancel_and_prune.remove(found, tmp_path, time.time() + 1, ["done"], JobMonitor()) is None
    assert not sweep.path.exists()


def test_a_run_that_goes_on_meanwhile_stays(make: Callable[..., Run], tmp_path: Path) -> None:
    run = make("a", code=1)
    found = cancel_and_prune.survey(tmp_path, JobMonitor())[0]
    event_files.append(run.path / "attempts/0/events/s.jsonl", kinds.Ended(code=1))  # its last news is of now
    assert cancel_and_prune.remove(found, tmp_path, time.time() - 30 * DAY, ["failed"], JobMonitor()) == "it is younger"
    assert run.path.exists()


@pytest.mark.parametrize("job", [run_status.JobStatus(), run_status.JobStatus(JobState.DONE)])
def test_a_run_with_a_heartbeat_stays_whatever_the_scheduler_that_is_asked_knows_of_its_job(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: run_status.JobStatus
) -> None:
    """On another cluster it has none, or an older one of the same number. The run reports no steps."""
    run = make("a", None)
    (found,) = cancel_and_prune.survey(tmp_path, JobMonitor())
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: job)
    (run.path / "lease").touch()
    (again,) = cancel_and_prune.survey(tmp_path, JobMonitor())
    before = time.time() - 30 * DAY
    assert [cancel_and_prune.reason_to_keep(each, before, ["lost"]) for each in (found, again)] == [
        None,
        "it is younger",
    ]
    assert cancel_and_prune.remove(found, tmp_path, before, ["lost"], JobMonitor()) == "it is younger"
    assert run.path.exists()


def test_the_pilots_of_a_sweep_go_with_it_and_not_before(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep whose pilot 0 is gone begins again with it, where the claims and stops of the first one still are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: OLD)
        sweep = make_sweep(tmp_path, 2, name="s", plan=HERE)
        end(sweep.run(0))
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.PENDING))
    params = {"kwargs": {"sweep": str(sweep.path), "pilot": 0}}
    pilot = make("s-pilot-0", plan=with_fields(HERE, workload={"entry": PILOT_ENTRY, "params": params}))
    shown = pruned(capsys, "--delete")
    assert "removed: 0 runs" in shown
    assert sweep.path.exists() and pilot.path.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: OLD)
        end(sweep.run(1))
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus())
    shown = pruned(capsys, "--delete")
    assert "removed: 1 run, " in shown
    assert [path.name for path in tmp_path.iterdir() if path.name != ".live"] == []


@pytest.mark.parametrize("point", [False, True])
@pytest.mark.parametrize("by_a_sweep", [False, True])
def test_what_somebody_has_come_to_wait_for_meanwhile_stays(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: bool, by_a_sweep: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: OLD)
        sweep = make_sweep(tmp_path, 2, name="a", plan=HERE)
        for number in range(2):
            end(sweep.run(number))
    (found,) = cancel_and_prune.survey(tmp_path, JobMonitor())
    queued = dataclasses.replace(plan_of(), after=(f"ok:{sweep.run(1).path if point else sweep.path}",))
    if by_a_sweep:
        follower = make_sweep(tmp_path / "other", 1, name="b", plan=queued).path
    else:
        follower = make("b", None, queued, tmp_path / "other").path
    assert dependencies.blocking_jobs(dataclasses.replace(queued, run_id="b", run_dir=str(follower))) == []
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.PENDING))
    why = cancel_and_prune.remove(found, tmp_path, time.time() - 30 * DAY, ["done"], JobMonitor())
    assert why == f"{'b/0' if by_a_sweep else 'b'} needs it"
    assert cancel_and_prune.survey(tmp_path, JobMonitor())[0].needed_by
    assert sweep.path.exists()


def test_who_waits_and_cannot_be_read_now_may_need_it(
    make: Callable[..., Run], tmp_path: Path, server: FileServer
) -> None:
    needed = make("a")
    follower = make("b", None, dataclasses.replace(plan_of(), after=(f"ok:{needed.path}",)), tmp_path / "other")
    (found,) = cancel_and_prune.survey(tmp_path, JobMonitor())
    dependencies.blocking_jobs(follower.plan())
    server.fail(follower.path / "journal.jsonl", number=errno.EIO)
    assert cancel_and_prune.remove(found, tmp_path, time.time() - 30 * DAY, ["done"], JobMonitor()) == "b needs it"


def test_a_run_that_cannot_be_read_now_may_need_any_other(
    make: Callable[..., Run], server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    needed, _ = make("a"), make("live", None)
    params = {**HERE.workload.params, "baseline": f"{needed.path}/results.json"}
    user = make("b", None, with_fields(HERE, workload={"params": params}))
    server.fail(user.path / "record.json", number=errno.EIO)
    told = pruned(capsys, "--delete").splitlines()
    assert [line.partition(":")[0] for line in told] == ["b is kept", "no run is removed", "removed"]
    assert told[1] == "no run is removed: b cannot be read now, and may need any other"
    assert needed.path.exists()


def test_a_removal_that_was_interrupted_is_finished_by_the_next_one(
    make: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a")

    def interrupted(folder: Path, ignore_errors: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(cancel_and_prune.shutil, "rmtree", interrupted)
        pruned(capsys, "--delete")
    (left,) = tmp_path.glob(f"{cancel_and_prune.REMOVED}*")
    assert "nothing to remove" in pruned(capsys)
    assert left.exists()
    pruned(capsys, "--delete")
    assert not left.exists()


def test_files_whose_sender_was_killed_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / f"{SENDING}old", tmp_path / f"{SENDING}new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "file").write_text("x" * 10000)
    os.utime(old, (OLD, OLD))
    freed, failed = cancel_and_prune.finish(tmp_path)
    assert (freed > 0, failed, old.exists(), new.exists()) == (True, {}, False, True)


def test_a_folder_that_cannot_be_removed_whole_holds_up_no_other(
    make: Callable[..., Run], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a file that a process has open, under another name, and so its folder."""
    before, stuck, after = make("0"), make("a"), make("b")
    unlink = os.unlink

    def busy(path: Any, *, dir_fd: int | None = None) -> None:
        folder = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        if f"{folder}/{path}".endswith(f"{cancel_and_prune.REMOVED}a/journal.jsonl"):
            raise OSError(errno.EBUSY, "Device or resource busy", "journal.jsonl")
        unlink(path, dir_fd=dir_fd)

    words = ["prune", "--older-than", "30d", "--delete"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", busy)
        for others in ("2 runs", "0 runs"):
            assert commands.main(words) == 1
            told = capsys.readouterr().out
            assert "a is not removed whole: [Errno 16] Device or resource busy: 'journal.jsonl'\n" in told
            assert f"removed: {others}, " in told
    assert not any(run.path.exists() for run in (before, stuck, after))
    assert [path.name for path in stuck.path.parent.glob(f"{cancel_and_prune.REMOVED}*/*")] == ["journal.jsonl"]
    assert commands.main(words) == 0
    assert not [*stuck.path.parent.glob(f"{cancel_and_prune.REMOVED}*")]


def test_runs_are_read_in_batches_with_one_reply_of_each_scheduler(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan and a history take up to 246 kB, and there may be 100,000."""
    for name in "abcde":
        make(name)
    batches: list[tuple[int, int]] = []
    read = run_status.each_status

    def counted(runs: Sequence[Run], live: JobMonitor) -> Any:
        batches.append((len(runs), id(live._pinned)))
        return read(runs, live)

    monkeypatch.setattr(cancel_and_prune, "each_status", counted)
    monkeypatch.setattr(cancel_and_prune, "BATCH", 2)
    live = JobMonitor()
    assert {old.id for old in cancel_and_prune.survey(tmp_path, live)} == {*"abcde"}
    assert [count for count, _ in batches] == [2, 2, 1]
    assert len({pinned for _, pinned in batches}) == 1 and batches[0][1] != id(None)
    assert live._pinned is None
