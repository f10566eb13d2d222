"""`status`: how far runs are, a table that fits, a scheduler that does not answer, and what is watched."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import cancel_and_prune, commands, post_mortem, progress_bars, status
from launcher.cli.status import COLUMNS, Rows, runs_table
from launcher.cli.why import explain, of_why
from launcher.config.schema import Debug, Program
from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.failures.codes import NextReason, StopReason
from launcher.monitoring import run_status
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, all_statuses, each_status, status_of
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run, token_of
from launcher.runs.history import history_of
from launcher.schedulers.base import JobState, QueryError, QueryTimeout, SchedulerJob
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pending import Why
from launcher.schedulers.slurm.client import Slurm, parse_jobs
from launcher.submission.resume import require_over
from tests.unit.clock import Clock
from tests.unit.operations import operations
from tests.unit.plans import plan_of, with_fields
from tests.unit.sweep_runs import begin, end, make_sweep

pytestmark = pytest.mark.usefixtures("clock")  # what a scheduler has said is good for a few seconds
NOW = 10_000.0
ID = "ddp_mnist-20261121-074601-3f9c"


def event(moment: float, name: str, **values: Any) -> dict[str, Any]:
    return {"time": moment, "event": name, **values}


def seen(state: RunState, *events: dict[str, Any], left: int | None = None, **plan: Any) -> RunStatus:
    """A run whose last attempt has told these events."""
    history = history_of([event(0, "submitted", job="7")], 0, events)
    return RunStatus(Run(Path("/runs/a")), plan_of(**plan), history, state, history.last(kinds.Progress), left=left)


def progress(moment: float, step: int, total: int = 1000) -> dict[str, Any]:
    return event(moment, "progress", step=step, total=total)


# -- how far


def test_how_far_a_training_is() -> None:
    started = event(NOW - 600, "started", job="7")
    run = seen(
        RunState.RUNNING, started, progress(NOW - 500, 0), progress(NOW - 100, 400), event(NOW - 90, "saved", step=300)
    )
    far = status.progress_of(run, NOW)
    assert [far[name] for name in ("step", "steps", "percent", "rate")] == [400, 1000, 40, 1.0]
    assert far["needs"] == 500  # 600 steps at one a second, told of 100 s ago
    assert far["elapsed"] == 600
    assert far["left"] == run.plan.time - 600
    assert (far["checkpoint"], far["checkpoint_age"]) == (300, 90)


def test_slow_first_steps_do_not_count_for_what_the_others_need() -> None:
    reports = [progress(NOW - 130, 0), progress(NOW - 10, 1), progress(NOW - 9, 2), progress(NOW, 20)]
    far = status.progress_of(seen(RunState.RUNNING, *reports), NOW)
    assert (far["rate"], far["needs"]) == (2.0, 490)  # the first step took two minutes


@pytest.mark.parametrize(
    ("state", "told", "scheduler", "left"),
    [
        (RunState.RUNNING, 1234, "slurm", 1234),  # what the scheduler says counts: the limit may have changed
        (RunState.RUNNING, None, "slurm", 3000),
        (RunState.RUNNING, None, "pbs", 3000),
        (RunState.RUNNING, None, "local", None),
        (RunState.QUEUED, 1234, "slurm", None),
        (RunState.UNKNOWN, 1234, "slurm", None),
        (RunState.DONE, None, "slurm", None),
    ],
)
def test_the_time_that_is_left(state: RunState, told: int | None, scheduler: str, left: int | None) -> None:
    run = seen(state, event(NOW - 600, "started", job="7"), left=told, time="1h", cluster={"scheduler": scheduler})
    assert status.progress_of(run, NOW)["left"] == left


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.DONE])
def test_a_run_that_was_named_says_what_it_continues_from(state: RunState, capsys: pytest.CaptureFixture[str]) -> None:
    events = [event(NOW - 9, "restored", step=100), event(NOW, "restored", step=104, memory=True, redone=1)]
    status._print_details(seen(state, *events), heading=False)
    line = "a: continues after step 104, from copies in memory, 1 step to be done again\n"
    assert capsys.readouterr().out == (line if state is RunState.RUNNING else "")


BREAKPOINT = event(NOW - 200, "breakpoint", rank=1, host="node2", where="train.py:10", socket="/s")


@pytest.mark.parametrize(
    ("state", "told", "waits"),
    [
        (RunState.RUNNING, [BREAKPOINT], [1]),
        (RunState.RUNNING, [BREAKPOINT, event(NOW - 100, "continued", rank=1)], []),
        (RunState.FAILED, [BREAKPOINT], []),
    ],
    ids=["waits", "has continued", "is over"],
)
def test_a_run_at_a_breakpoint_needs_nobody_knows_how_long(
    state: RunState, told: list[dict[str, Any]], waits: list[int]
) -> None:
    events = [progress(NOW - 500, 0), progress(NOW - 300, 400), *told]
    far = status.progress_of(seen(state, *events, nodes=2, debug=Debug(rank=1)), NOW)
    assert [each["rank"] for each in far["breakpoints"]] == waits
    assert (far["needs"] is None) is bool(waits or state is RunState.FAILED)


def test_a_training_or_program_of_this_machine_ends_after_its_time_and_other_work_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {"scheduler": "local"}
    run = seen(RunState.RUNNING, event(NOW - 600, "started", job="x"), time="1h", cluster=here)
    assert status.progress_of(run, NOW)["left"] is None
    # It gets its stop signal then
    program = Program("program", "launcher.worker.main:run_rank", seed=0, script="train.py")
    run = seen(RunState.RUNNING, event(NOW - 600, "started", job="x"), time="1h", cluster=here, workload=program)
    assert status.progress_of(run, NOW)["left"] == 3000
    run = seen(RunState.RUNNING, event(NOW - 600, "started", job="x"), time="1h", cluster=here)
    monkeypatch.setattr(status, "saved_before", lambda _: (5, NOW - 7))
    assert status.progress_of(run, NOW)["left"] == 3000
    assert status.progress_of(run, NOW)["checkpoint_age"] == 7


@given(
    st.lists(st.tuples(st.floats(0, 2e4), st.integers(-5, 2000), st.integers(-5, 1000)), max_size=6),
    st.sampled_from(RunState), st.floats(0, 2e4),
)  # fmt: skip
def test_numbers_are_sound_whatever_a_run_has_told(
    told: list[tuple[float, int, int]], state: RunState, now: float
) -> None:
    events = [progress(moment, step, total) for moment, step, total in sorted(told)]
    far = status.progress_of(seen(state, *events), now)
    assert far["percent"] is None or far["percent"] <= 100
    assert all(far[name] is None or far[name] >= 0 for name in ("needs", "elapsed", "left", "rate"))
    assert far["needs"] is None or state is RunState.RUNNING


def test_all_percent_are_done_only_when_all_steps_are() -> None:
    assert status.progress_of(seen(RunState.RUNNING, progress(1, 999_999, 1_000_000)), NOW)["percent"] == 99
    assert status.progress_of(seen(RunState.DONE, progress(1, 1_000_000, 1_000_000)), NOW)["percent"] == 100


def test_the_newest_checkpoint_in_a_folder(tmp_path: Path) -> None:
    assert status.saved_before(str(tmp_path / "none")) is None
    for name in ("step-000000009", "step-000000100", ".saving-step-000000200-attempt-0-ab", "step-x", "notes"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "step-000000100", (50, 50))
    assert status.saved_before(str(tmp_path)) == (100, 50)


# -- the table


def row(**values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(status.KEYS), "run": ID, "state": "running", "job": "4711", "nodes": 16, **values}


FULL = row(
    attempt=3, step=120_000, steps=400_000, percent=30, elapsed=3 * 3600, left=1234, needs=90_000, checkpoint=119_000,
    checkpoint_age=185,
)  # fmt: skip


def table_of(*rows: dict[str, Any], width: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        return runs_table(rows)


def test_a_full_row_fits_a_terminal_80_wide_and_a_wide_one_shows_all() -> None:
    lines = runs_table([FULL])
    assert re.split(r"\s{2,}", lines[0]) == ["RUN", "STATE", "ATTEMPT", "STEP", "TIME", "TIME LEFT"]
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [ID, "running", "3", "120000", "30%", "3h00m", "20m"]
    apart = {**FULL, "kind": "hang", "cluster": "hpc", "remote": True}
    assert re.split(r"\s{2,}", table_of(apart, width=220)[0]) == list(COLUMNS)
    assert "CLUSTER" in runs_table([apart, FULL])[0]
    assert "CLUSTER" not in table_of(FULL, width=200)[0]
    assert "  3  " in table_of(FULL, width=200)[1]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert runs_table([row()])[0].split() == ["RUN", "STATE", "JOB", "NODES"]
    assert runs_table([row(job=None, nodes=None)])[0].split() == ["RUN", "STATE"]


@given(st.integers(1, 64), st.integers(20, 200), st.integers(0, 10**9))
def test_ids_and_states_are_never_cut(length: int, width: int, step: int) -> None:
    name = "x" * length
    silent = row(run="y", state="unknown", before="RUNNING (None)")
    lines = table_of({**FULL, "run": name, "step": step}, silent, width=width)
    assert lines[1].startswith(f"{name}")
    assert "unknown (running)" in lines[2]
    fixed = max(length, 3) + 2 + len("unknown (running)")
    assert max(map(len, lines)) <= max(width, fixed)


# -- asking


AT_BREAKPOINTS = [{"rank": 1, "host": "node2", "where": "train.py:10", "seconds": 200}]


@pytest.mark.parametrize(
    ("values", "state", "why"),
    [
        ({"state": "running"}, "running", None),
        ({"state": "running", "breakpoints": AT_BREAKPOINTS}, "running (breakpoint)", None),
        ({"state": "failed", "kind": "hang"}, "failed", "hang"),
        ({"state": "queued", "kind": "preempted"}, "queued", "after preempted"),
    ],
)
def test_the_table_says_why(values: dict[str, Any], state: str, why: str | None) -> None:
    head, line = table_of(row(**values), width=200)
    assert f"  {state}  " in line
    assert ("WHY" in head) is (why is not None)
    assert why is None or f"  {why}  " in line


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], ""),
        (AT_BREAKPOINTS, "at a breakpoint: rank 1 on node2 waits in train.py:10 for 3m: "
                         f"`{commands.program()} attach {ID} --debug`"),
        (AT_BREAKPOINTS * 5, "; 1 more: "),
        (AT_BREAKPOINTS * 2, f"`{commands.program()} attach {ID} --debug --rank 1`"),
    ],
)  # fmt: skip
def test_a_run_at_a_breakpoint_is_shown_with_the_command_that_attaches_to_it(
    found: list[dict[str, Any]], words: str
) -> None:
    shown = status.breakpoints(row(breakpoints=found))
    assert shown == words or (words and words in shown)


Jobs = dict[str, tuple[JobState, str]]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Sets what Slurm says; an exception is raised. Returns what it was asked."""

    def told_of(jobs: Jobs | Exception, ends: Jobs | Exception | None = None) -> list[str]:
        asked: list[str] = []

        def told(what: Jobs | Exception | None) -> dict[str, SchedulerJob]:
            if isinstance(what, Exception):
                raise what
            return {job: SchedulerJob(job, state, word, time_left=100) for job, (state, word) in (what or {}).items()}

        def listed(_: object) -> dict[str, SchedulerJob]:
            asked.append("squeue")
            return told(jobs)

        def accounting(_: object, ids: list[str]) -> dict[str, SchedulerJob]:
            asked.append(f"sacct {' '.join(ids)}")
            return told(ends)

        monkeypatch.setattr(Slurm, "jobs", listed)
        monkeypatch.setattr(Slurm, "accounting", accounting)
        return asked

    return told_of


RUNNING, FAILED = (JobState.RUNNING, "RUNNING"), (JobState.FAILED, "NODE_FAIL")


def make(folder: Path, name: str, job: str, *, step: int | None = None, **plan: Any) -> Run:
    """A run that was handed over a minute ago, and has begun if there is a step."""
    run = Run.create(folder / name)
    values = plan_of(**plan)
    values = with_fields(values, checkpoint={"dir": f"{run.path}/checkpoints"})
    run.write_record(values, {}, {"launcher": "1", "token": "t"})
    line = json.dumps(event(event_files.time.time() - 60, "submitted", job=job))  # by the clock of all events
    (run.path / "journal.jsonl").write_text(f"{line}\n")
    if step is not None:
        begin(run, job, step=step)
    return run


def rows(folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    return {each["run"]: each for each in Rows(names, folder, False).look().rows}


@pytest.mark.parametrize(
    ("job", "size"), [(RUNNING, [2, 4]), ((JobState.PENDING, "PENDING"), [3, 6])], ids=["goes on", "is queued again"]
)
def test_a_run_that_lost_a_node_has_the_others(
    tmp_path: Path, says: Callable[..., list[str]], job: tuple[JobState, str], size: list[int]
) -> None:
    run = make(tmp_path, "a", "1", step=3, nodes=3, procs_per_node=2, min_nodes=1)
    event_files.append(
        run.attempts()[-1].events_file("node-0"), kinds.Resized(round=1, members=2, world_size=4, size=3)
    )
    says({"1": job})
    assert [rows(tmp_path)["a"][key] for key in ("nodes", "ranks")] == size


def test_a_run_that_is_queued_again_says_how_its_last_attempt_ended(
    tmp_path: Path, says: Callable[..., list[str]]
) -> None:
    run = make(tmp_path, "a", "1", step=3)
    event_files.append(run.attempts()[-1].events_file("node-0"), kinds.Stop(reason=StopReason.SIGNAL, signal="SIGTERM"))
    events = run.attempts()[-1].events_file("script")
    event_files.append(events, kinds.Stopped(step=3, saved=-1, preempted=True))
    event_files.append(events, kinds.Ended(code=75))
    make(tmp_path, "b", "2")
    says({"1": (JobState.PENDING, "PENDING"), "2": (JobState.PENDING, "PENDING")})
    shown = rows(tmp_path)
    assert [(shown[name]["state"], shown[name]["kind"]) for name in "ab"] == [("queued", "preempted"), ("queued", None)]


def test_an_attempt_that_was_cancelled_stays_so_when_the_run_is_resumed_and_the_next_one_counts_until_now(
    tmp_path: Path, says: Callable[..., list[str]]
) -> None:
    run = make(tmp_path, "a", "1")
    events = begin(run, "1")
    event_files.append(events / "node-0.jsonl", kinds.Stop(reason=StopReason.KILLED))
    event_files.append(events / "script.jsonl", kinds.Stays(what="stays", reason=NextReason.CANCELLED))
    event_files.append(events / "script.jsonl", kinds.Ended(code=75))
    started = begin(run, "1", number=1) / "script.jsonl"
    started.write_text(json.dumps({**json.loads(started.read_text()), "time": event_files.time.time() - 3700}) + "\n")
    says({"1": RUNNING})
    (seen,) = Rows(["a"], tmp_path, False).look().seen
    _, first, second = status._attempts(seen)
    assert first[-1] == "75 cancelled: it was cancelled"
    assert second[-2].startswith("01:01:")


def test_the_last_line_of_output_of_a_run_that_was_named_is_shown(
    tmp_path: Path, says: Callable[..., list[str]]
) -> None:
    run = make(tmp_path, "a", "1", step=3)
    (run.path / "output-1.log").write_text("[0] step 1\n[0] step 2\n\n")
    for job, words in ((RUNNING, "ago: [0] step 2"), (FAILED, "")):
        says({"1": job})
        (looked,) = Rows(["a"], tmp_path, False).look().seen
        assert status._last_output(looked).endswith(words)


def test_many_forgotten_runs_are_two_questions(tmp_path: Path, says: Callable[..., list[str]]) -> None:
    for number in range(9):
        make(tmp_path, f"run-{number}", str(number))
    asked = says({"0": RUNNING}, {"3": FAILED})
    states = {name: each["state"] for name, each in rows(tmp_path).items()}
    assert states == {
        "run-0": "running",
        "run-3": "failed",
        **{f"run-{number}": "lost" for number in (1, 2, *range(4, 9))},
    }
    assert len(asked) == 2
    assert sorted(asked[1].split()[1:]) == [str(number) for number in range(1, 9)]


def test_ten_times_the_runs_are_ten_times_the_work(tmp_path: Path, says: Callable[..., list[str]]) -> None:
    says({str(number): RUNNING for number in range(0, 100, 2)}, {str(number): FAILED for number in range(1, 100, 2)})
    work = []
    for count in (2, 10, 100):  # the first look imports modules
        folder = tmp_path / str(len(work))
        for number in range(count):
            make(folder, f"run-{number}", str(number), step=3)
        found: list[dict[str, Any]] = []
        work.append(operations(lambda folder=folder, found=found: found.extend(Rows([], folder, True).look().rows)))  # type: ignore[misc]
        assert len(found) == count
    assert work[2] < 15 * work[1]


def test_pbs_is_asked_for_one_job_at_a_time_or_for_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ids make qstat open a connection for each."""
    asked = []
    over = {"5": SchedulerJob("5", JobState.CANCELLED, "CANCELLED")}
    monkeypatch.setattr(PBS, "record", lambda _, job: asked.append(job) or None)
    monkeypatch.setattr(
        PBS, "jobs", lambda _, *also_over: asked.append(" ".join(["qstat", *also_over])) or (over if also_over else {})
    )
    plan = {"cluster": {"scheduler": "pbs"}}
    for number in range(2):
        make(tmp_path, f"run-{number}", f"{number}.srv", **plan)
    assert {each["state"] for each in rows(tmp_path).values()} == {"lost"}
    assert asked == ["qstat", "1.srv", "0.srv"]
    asked.clear()
    for number in range(2, 9):
        make(tmp_path, f"run-{number}", f"{number}.srv", **plan)
    run_status.forget(plan_of(**plan))
    assert rows(tmp_path)["run-5"]["state"] == "cancelled"
    assert asked == ["qstat", "qstat -x"]


def test_commands_share_an_answer_but_not_about_what_it_could_not_know(
    tmp_path: Path, says: Callable[..., list[str]], clock: Clock
) -> None:
    make(tmp_path, "old", "1")
    asked = says({"1": RUNNING, "2": RUNNING})
    for _ in range(3):
        assert rows(tmp_path)["old"]["state"] == "running"
    assert asked == ["squeue"]
    # The answer that is shared was given before this one was handed over, and it is not lost.
    clock.now += 0.1
    run = make(tmp_path, "new", "3")
    run.journal(kinds.Submitted(job="3"))
    again = says({"1": RUNNING, "3": (JobState.PENDING, "PENDING")})
    assert {name: each["state"] for name, each in rows(tmp_path).items()} == {"old": "running", "new": "queued"}
    assert again.count("squeue") == 1


def test_a_look_at_many_runs_asks_once_however_long_it_takes(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, clock = [make(tmp_path, str(number), str(number)) for number in range(9)], itertools.count(int(time.time()))
    ticking = SimpleNamespace(time=lambda: next(clock), monotonic=lambda: 0.0)
    monkeypatch.setattr("launcher.monitoring.run_status.time", ticking)
    monkeypatch.setattr("launcher.schedulers.job_cache.time", ticking)
    asked = says({str(number): RUNNING for number in range(9)})
    follower = JobMonitor()
    each_status(runs, follower)
    assert asked == ["squeue"]
    for _ in range(5):  # the next look is a new one
        each_status(runs, follower)
    assert asked.count("squeue") > 1


def test_what_acts_upon_an_answer_asks_for_itself(tmp_path: Path, says: Callable[..., list[str]]) -> None:
    run = make(tmp_path, "a", "1")
    says({"1": RUNNING})
    rows(tmp_path)
    says({}, {"1": FAILED})
    assert status_of(run, JobMonitor()).state is RunState.FAILED
    assert all_statuses([run])[0].state is RunState.RUNNING  # the answer of a moment ago


def test_after_a_cancel_nobody_believes_the_answer_before(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "a", "1")
    says({"1": RUNNING})
    rows(tmp_path)
    monkeypatch.setattr(Slurm, "cancel", lambda *_: None)
    JobMonitor().cancel(run)
    says({}, {"1": (JobState.CANCELLED, "CANCELLED")})
    assert rows(tmp_path)["a"]["state"] == "cancelled"


def test_the_job_of_a_resume_whose_answer_was_lost_is_cancelled(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal has the job before, with which the run is over."""
    run, cancelled = make(tmp_path, "a", "1"), list[str]()
    end(run, job="1", code=75)
    token = f"{token_of(run.plan().run_dir)}-r1"
    run.journal(kinds.Submitting(token=token))
    says({"2": (JobState.PENDING, "PENDING")})
    monkeypatch.setattr(Slurm, "find", lambda _, wanted, name: {token: "2"}.get(wanted))
    monkeypatch.setattr(Slurm, "cancel", lambda _, *jobs: cancelled.extend(jobs))
    assert commands.main(["cancel", "a", "--runs-dir", str(tmp_path)]) == 0
    assert (cancelled, run.has("cancelled")) == (["2"], True)


def test_a_cancel_that_the_scheduler_did_not_take_is_taken_back(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise QueryError("scancel: error: Unable to contact slurm controller")

    run = make(tmp_path, "a", "1")
    says({"1": RUNNING})
    monkeypatch.setattr(Slurm, "cancel", unreachable)
    with pytest.raises(QueryError):
        JobMonitor().cancel(run)
    assert not run.has("cancelled")
    assert rows(tmp_path)["a"]["state"] == "running"


def test_each_run_is_cancelled_though_another_one_cannot_be(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cancel(_: object, *jobs: str) -> None:
        if jobs == ("1",):
            raise QueryError("scancel: error: Unable to contact slurm controller")

    runs = [make(tmp_path, name, job) for name, job in (("a", "1"), ("b", "2"))]
    says({"1": RUNNING, "2": RUNNING})
    monkeypatch.setattr(Slurm, "cancel", cancel)
    assert commands.main(["cancel", "nobody", "a", "b", "a", "--runs-dir", str(tmp_path)]) == 1
    assert [run.has("cancelled") for run in runs] == [False, True]
    printed = capsys.readouterr()
    assert "b is being cancelled" in printed.out
    assert "launcher: nobody is not cancelled: no run 'nobody'" in printed.err
    assert printed.err.count("launcher: a is not cancelled: scancel: error: Unable") == 1


def test_each_run_is_cancelled_though_another_one_cannot_be_marked(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    runs = [make(tmp_path, name, job) for name, job in (("a", "1"), ("b", "2"))]
    says({"1": RUNNING, "2": RUNNING})
    monkeypatch.setattr(Slurm, "cancel", lambda _, *jobs: told.extend(jobs))
    (runs[0].path / "cancelled").symlink_to(tmp_path / "full" / "a")  # for the mark there is no room
    assert commands.main(["cancel", "a", "b", "--runs-dir", str(tmp_path)]) == 1
    assert (told, runs[1].has("cancelled")) == (["1", "2"], True)
    assert f"launcher: a is not marked as cancelled: {runs[0].path}/cancelled: No such file" in capsys.readouterr().err


def test_a_run_that_is_asked_to_end_does_not_count_as_running(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, "a", "1")
    says({"1": RUNNING})
    monkeypatch.setattr(Slurm, "cancel", lambda *_: None)
    JobMonitor().cancel(run)
    assert (rows(tmp_path)["a"]["state"], rows(tmp_path)["a"]["over"]) == ("cancelling", False)


def test_a_follower_asks_less_often_while_nothing_changes(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = make(tmp_path, "a", "1", step=3), itertools.count(int(time.time()))
    ticking = SimpleNamespace(time=lambda: next(clock), monotonic=lambda: 0.0)
    monkeypatch.setattr("launcher.monitoring.run_status.time", ticking)
    monkeypatch.setattr("launcher.schedulers.job_cache.time", ticking)
    asked, follower = says({"1": RUNNING}), JobMonitor()
    for _ in range(100):
        status_of(run, follower)
    assert 5 < len(asked) < 33  # a look takes a second or more by this clock: every 2 s would be 50 or more
    end(run, 1, job="1", number=1)  # the run's own record tells of a change
    asked = says({"1": FAILED})
    assert RunState.FAILED in [status_of(run, follower).state for _ in range(4)]
    assert asked


def test_a_site_that_wants_time_between_queries_has_it_whatever_changes(
    tmp_path: Path, says: Callable[..., list[str]], clock: Clock
) -> None:
    run, asked = make(tmp_path, "a", "1", cluster={"query_interval": 30}), says({"1": RUNNING})
    follower = JobMonitor(share=True)
    assert status_of(run, follower).state is RunState.RUNNING
    for number in range(29):  # each is news of the run, after which the scheduler would be asked
        clock.now += 1
        begin(run, "1", step=number, number=number)
        assert {status_of(run, each).state for each in (follower, JobMonitor(share=True))} == {RunState.RUNNING}
    assert len(asked) == 1
    clock.now += 2
    status_of(run, follower)
    assert len(asked) == 2


def test_a_job_that_no_query_can_know_yet_is_unknown_and_not_lost(
    tmp_path: Path, says: Callable[..., list[str]], clock: Clock
) -> None:
    asked = says({})
    run, monitor = make(tmp_path, "a", "1", cluster={"query_interval": 30}), JobMonitor(share=True)
    assert status_of(run, monitor).state is RunState.LOST
    clock.now += 5
    run.journal(kinds.Submitted(job="3"))
    (found,) = all_statuses([run], monitor)
    assert asked == ["squeue", "sacct 1"]
    assert (found.state, found.unanswered) == (RunState.UNKNOWN, "slurm")
    assert found.job.problem == "its site wants 30 s between two queries (cluster.query_interval)"
    clock.now += 31
    says({"3": RUNNING})
    assert status_of(run, monitor).state is RunState.RUNNING


def test_a_run_that_failed_long_ago_does_not_have_the_scheduler_asked_often(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = make(tmp_path, "a", "1"), itertools.count(int(time.time()) + 3600)
    end(run, 1, job="1")
    ticking = SimpleNamespace(time=lambda: next(clock), monotonic=lambda: 0.0)
    for module in ("launcher.monitoring.run_status", "launcher.schedulers.job_cache"):
        monkeypatch.setattr(f"{module}.time", ticking)
    asked, follower = says({"2": RUNNING}), JobMonitor()
    assert {status_of(run, follower).state for _ in range(100)} == {RunState.FAILED}
    assert len(asked) < 33  # every 2 s would be 50 or more


def test_the_end_of_a_forgotten_job_is_asked_for_once_and_the_others_less_often(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock = make(tmp_path, "a", "1", step=3), itertools.count(int(time.time()))
    ticking = SimpleNamespace(time=lambda: next(clock), monotonic=lambda: float(next(clock)))
    for module in ("launcher.monitoring.run_status", "launcher.schedulers.job_cache"):
        monkeypatch.setattr(f"{module}.time", ticking)
    asked, follower = says({"2": RUNNING}, {"1": FAILED}), JobMonitor()
    assert {status_of(run, follower).state for _ in range(100)} == {RunState.FAILED}
    assert len([each for each in asked if each.startswith("sacct")]) == 1
    assert len([each for each in asked if each == "squeue"]) < 30  # every 2 s would be 150 or more


def test_runs_that_nobody_remembers_are_asked_about_together_again_and_again(
    tmp_path: Path, says: Callable[..., list[str]], clock: Clock
) -> None:
    for number in range(9):
        make(tmp_path, f"run-{number}", str(number))
    asked, watched = says({"0": RUNNING}), Rows([], tmp_path, False)
    for _ in range(3):
        watched.look()
        clock.now += 100
    assert [len(each.split()) for each in asked if each.startswith("sacct")] == [9] * 3  # 8 ids each


# -- no answer

SILENT = QueryTimeout("squeue did not answer within 10 s")


def test_a_scheduler_that_does_not_answer_makes_a_partial_answer(
    tmp_path: Path, says: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
) -> None:  # fmt: skip
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    for number in range(2):
        make(tmp_path, f"run-{number}", str(number), step=5)
    end(make(tmp_path, "done", "9"), 0, job="9")
    here = make(tmp_path, "here", "local-x", cluster={"scheduler": "local"})
    here.journal(kinds.ProcessStarted(pid=10**7, start=1, host="elsewhere"))
    says({"0": RUNNING})
    states = {name: each["state"] for name, each in rows(tmp_path, "run-0", "done").items()}
    assert states == {"run-0": "running", "done": "done"}
    monkeypatch.setattr("launcher.monitoring.run_status.SCHEDULER_INTERVAL", -1.0)
    asked = says(SILENT)
    clock.now += 7
    told = rows(tmp_path)
    assert {name: each["state"] for name, each in told.items()} == {
        "run-0": "unknown", "run-1": "unknown", "done": "done", "here": "unknown",
    }  # fmt: skip
    assert {name: each["unanswered"] for name, each in told.items()} == {
        "run-0": "slurm", "run-1": "slurm", "done": None, "here": None,
    }  # fmt: skip
    assert (told["run-0"]["before"], told["run-1"]["before"]) == ("RUNNING", None)
    assert told["run-0"]["answer_age"] == 7
    assert told["run-0"]["reason"] == "squeue did not answer within 10 s"
    assert {each["kind"] for each in told.values()} == {None}, "nothing has ended that is not known to have ended"
    assert told["run-0"]["step"] == 5
    assert asked  # once for each time that it is due, which is always here
    assert commands.main(["status"]) == 0
    printed = capsys.readouterr().out
    assert "unknown (running)" in printed
    assert "This is incomplete: slurm does not answer (squeue did not answer within 10 s)." in printed
    assert "2 states are unknown; the state of 7s ago is in brackets." in printed
    assert commands.main(["status", "run-1"]) == 0
    assert "1 state is unknown.\n" in capsys.readouterr().out, "nothing is in brackets: it was not seen before"
    assert commands.main(["status", "--json"]) == 0
    assert {each["state"] for each in json.loads(capsys.readouterr().out)} == {"unknown", "done"}


def test_accounting_that_is_slow_leaves_a_run_unknown_and_one_that_is_not_there_leaves_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a", "1")
    monkeypatch.setattr(Slurm, "jobs", lambda _: {})

    def run(problem: QueryError) -> str:
        def fails(*_: object) -> str:
            raise problem

        monkeypatch.setattr(Slurm, "run", fails)
        return str(rows(tmp_path)["a"]["state"])

    assert run(QueryTimeout("sacct did not answer within 10 s")) == "unknown"
    assert run(QueryError("sacct failed (exit 1): Slurm accounting storage is disabled")) == "lost"


@pytest.mark.parametrize(("word", "state"), [("EXPEDITING", "queued"), ("NEW_STATE_OF_2031", "unknown")])
def test_a_run_whose_job_slurm_still_lists_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, state: str
) -> None:
    run = make(tmp_path, "a", "1")
    end(run, 75, job="1")
    monkeypatch.setattr(Slurm, "run", lambda *_: f"{'1':64}{word:32}{'None':64}{'(null)':256}1:00\n")
    assert rows(tmp_path)["a"]["state"] == state
    do = "`.*launcher cancel a` first" if state == "queued" else f"`touch {run.path}/stop` and wait"
    with pytest.raises(RunError, match=f"a is {state}.*: to change its size, {do}"):
        require_over(run)
    if state == "unknown":
        found = explain(run, "launcher")
        assert (found.why, found.facts.scheduler, found.facts.job_state) == (Why.NO_STATE, "slurm", word)
        assert f"slurm says {word}, a state that the launcher does not know" in of_why(found)


def test_states_are_not_waited_for_as_long_as_a_submission() -> None:
    assert run_status.queries(plan_of(), run_status.QUERY_TIMEOUT) == Slurm(10)
    assert run_status.queries(plan_of(cluster={"submit_timeout": 3}), run_status.QUERY_TIMEOUT) == Slurm(3)
    assert run_status.queries(plan_of()) == Slurm(60)


def test_who_waits_for_a_scheduler_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Passed:
        """A timer whose time is over before squeue answers."""

        def __init__(self, seconds: float, tell: Callable[[], None]) -> None:
            self.start = tell

        def cancel(self) -> None:
            pass

    monkeypatch.setattr("launcher.monitoring.run_status.threading", SimpleNamespace(Timer=Passed))
    monkeypatch.setattr(Slurm, "jobs", lambda _: {"1": SchedulerJob("1", *RUNNING)})
    monkeypatch.setattr("launcher.monitoring.run_status.SCHEDULER_INTERVAL", -1.0)
    run, asks = make(tmp_path, "a", "1"), JobMonitor()
    for _ in range(2):
        status_of(run, asks)
    assert capsys.readouterr().err == "launcher: waiting for slurm to answer, up to 10 s\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("2:03:04", 7384), ("59:59", 3599), ("0:00", 0), ("UNLIMITED", None), ("NOT_SET", None),
     ("INVALID", None), ("", None)],
)  # fmt: skip
def test_squeue_tells_what_is_left_of_the_wall_time(text: str, seconds: int | None) -> None:
    line = f"{'7':64}{'RUNNING':32}{'None':64}{'launcher-1':256}{text:32}"
    assert parse_jobs(line)["7"].time_left == seconds
    assert parse_jobs(line[:416])["7"].time_left is None  # of a site whose squeue tells less


@pytest.mark.parametrize("of_last", [RUNNING, (JobState.PENDING, "PENDING"), None])
def test_the_events_of_each_attempt_are_read_once(
    tmp_path: Path,
    says: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    of_last: tuple[JobState, str] | None,
) -> None:
    run = make(tmp_path, "a", "1")
    says({"1": of_last} if of_last else {})
    for number in range(3):
        if number == 2 and of_last == RUNNING:
            begin(run, "1", number=number)
        else:
            end(run, 75, number=number, job="1")
    read, events = [], Attempt.latest_events
    monkeypatch.setattr(Attempt, "latest_events", lambda self: read.append(self.number) or events(self))
    view = Rows(["a"], tmp_path, False).look()
    assert read == ([2] if of_last else [2, 2])  # once more if the job is gone: what has it left?
    (seen,) = view.seen  # with the events of the last one
    read.clear()
    assert [line[0] for line in status._attempts(seen)] == ["ATTEMPT", "0", "1", "2"]
    assert read == [0, 1]
    if seen.state.over:
        read.clear()
        post_mortem.findings_of(seen, run.attempts()[-1], None, "a")
        assert read == []


def test_of_many_runs_few_plans_and_histories_are_in_memory_at_once(
    tmp_path: Path, says: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [str(number) for number in range(5)]
    for job in jobs:
        make(tmp_path, f"run-{job}", job, step=1)
    asked, sizes = says(dict.fromkeys(jobs, RUNNING)), []
    monkeypatch.setattr(cancel_and_prune, "BATCH", 2)
    monkeypatch.setattr(
        cancel_and_prune, "each_status", lambda runs, live: sizes.append(len(runs)) or each_status(runs, live)
    )
    view = Rows([], tmp_path, True).look()
    assert {row["run"] for row in view.rows} == {f"run-{job}" for job in jobs}
    assert (sizes, view.seen, asked) == ([2, 2, 1], [], ["squeue"])


def test_runs_of_one_id_in_two_folders_have_their_own_metrics_and_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make(tmp_path / folder, "a", str(number)) for number, folder in enumerate(("here", "there"))]
    for number, run in enumerate(runs):
        end(run, 0, job=str(number), metrics={"loss": number})
    assert commands.main(["status", "--json", *(str(run.path) for run in runs)]) == 0
    assert [each["metrics"] for each in json.loads(capsys.readouterr().out)] == [{"loss": 0}, {"loss": 1}]
    views = [Rows([str(run.path) for run in runs], tmp_path, False).look() for _ in range(3)]
    for view in views:
        view.rows[1].update(attempt=1, over=view is views[-1])
    monkeypatch.setattr(Rows, "look", lambda self: views.pop(0))
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)
    assert status.watch(Rows([], tmp_path, False)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_run_that_is_queued_again_has_the_duration_of_its_last_attempt() -> None:
    events = [event(NOW - 600, "started", job="7"), event(NOW - 500, "ended", code=75)]
    assert status.progress_of(seen(RunState.QUEUED, *events), NOW)["elapsed"] == 100


# -- watching


def test_what_is_watched_is_told_in_lines_where_there_is_no_terminal(
    tmp_path: Path, says: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
) -> None:  # fmt: skip
    monkeypatch.setattr("launcher.monitoring.run_status.SCHEDULER_INTERVAL", -1.0)
    run = make(tmp_path, "a", "1")
    says({"1": (JobState.PENDING, "PENDING")})

    def happens() -> Iterator[None]:
        yield  # nothing: no line
        says({"1": RUNNING})
        events = begin(run, "1", step=1)
        yield
        with (events / "rank-0.jsonl").open("a") as file:
            file.write(json.dumps({"time": clock.now + 5, "event": "progress", "step": 55, "total": 100}) + "\n")
        yield
        says(SILENT)
        yield
        says({"1": RUNNING})
        yield
        with (events / "script.jsonl").open("a") as file:
            file.write(json.dumps({"time": clock.now + 9, "event": "ended", "code": 0}) + "\n")
        yield

    history = happens()
    monkeypatch.setattr(status.time, "sleep", lambda seconds: clock.sleep(seconds) or next(history))
    assert status.watch(Rows(["a"], tmp_path, False)) == 0
    lines = [line.split("  ", 1)[-1] if line[2:3] == ":" else line for line in capsys.readouterr().out.splitlines()]
    assert [line.split(":")[0].split(", needs")[0] for line in lines] == [
        "a  queued", "a  running, step 1/100 (1%), 1m left", "a  running, step 55/100 (55%), 1m left",
        "a  unknown (running), step 55/100 (55%)", "slurm does not answer (squeue did not answer within 10 s)",
        "a  running, step 55/100 (55%), 1m left", "slurm answers again", "a  done, step 55/100 (55%)",
    ]  # fmt: skip


def test_a_cluster_that_does_not_answer_is_told_once_and_is_not_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [{"hpc": "This is incomplete: no answer; as of 4s ago."}, {"hpc": "the same; as of 19s ago."}, {}]
    views = [status.View([], [], 0, each) for each in silent]
    assert status.picture(views[0], 24)[-1] == silent[0]["hpc"]
    monkeypatch.setattr(Rows, "look", lambda self: views.pop(0))
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)
    assert status.watch(Rows([], tmp_path, False)) == 0
    assert capsys.readouterr().out.splitlines() == [silent[0]["hpc"], "hpc answers again"]


def answer(monkeypatch: pytest.MonkeyPatch, *answers: Exception | status.View) -> None:
    """The next looks at the rows raise or return these."""
    left = list(answers)

    def look(_: object) -> status.View:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(Rows, "look", look)


def test_a_watch_waits_for_a_file_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(tmp_path))
    answer(monkeypatch, UnavailableError("gone"), stale, status.View([], [], 0))
    monkeypatch.setattr(progress_bars.time, "sleep", lambda seconds: None)
    assert status.watch(Rows([], tmp_path, False)) == 0
    assert capsys.readouterr().err == f"launcher: waiting: gone\nlauncher: waiting: {stale}\n"
    answer(monkeypatch, OSError(errno.EIO, os.strerror(errno.EIO)))  # the terminal was closed
    with pytest.raises(OSError, match="Input/output"):
        status.watch(Rows([], tmp_path, False))


def test_after_a_file_server_was_silent_a_watch_goes_on_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    row = {**dict.fromkeys(status.KEYS), "run": "a", "state": "running", "over": False}
    gone = UnavailableError("gone")
    answer(monkeypatch, gone, gone, status.View([row], [], 0), status.View([], [], 0))
    assert status.watch(Rows([], tmp_path, False)) == 0
    assert clock.slept == [progress_bars.UNREADABLE_INTERVAL] * 2 + [status.MIN_POLL_INTERVAL]


def test_ctrl_c_leaves_a_watch_without_a_complaint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Rows, "look", interrupted)
    assert status.watch(Rows([], tmp_path, False)) == 0


@pytest.mark.parametrize("width", [80, 140])
def test_the_picture_of_a_watch_fits_the_terminal(
    tmp_path: Path, says: Callable[..., list[str]], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    says({"1": RUNNING, **{f"100_{index}": RUNNING for index in range(3)}})
    make(tmp_path, ID, "1", step=30)
    make(tmp_path, "other", "2")
    sweep = make_sweep(tmp_path, 3)
    end(sweep.run(0), 0)
    lines = status.picture(Rows([], tmp_path, False).look(), 24)
    assert max(map(len, lines)) <= width
    mine = next(line for line in lines if line.startswith(ID))
    assert "running" in mine
    assert "30%" in mine
    assert any(line.startswith("lr-1") and "1/3 done" in line for line in lines)
    assert status.picture(Rows([], tmp_path, False).look(), 6)[-1] == "... and 1 more, which do not fit"


def test_a_watch_is_not_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    from launcher.errors import ConfigError

    with pytest.raises(ConfigError, match="--json does not go with --watch"):
        commands.main(["status", "--watch", "--json"])


# -- a choice of them


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ({"state": "failed", "updated": 50.0}, "failed"),
        ({"state": "lost", "updated": 150.0}, "failed since both"),
        ({"state": "done", "updated": 150.0}, "since"),
        ({"state": "done", "updated": 50.0}, ""),
        ({"state": "unreadable", "updated": None}, "failed since both"),  # nobody knows when
        ({"state": "3/4 done, 1 failed", "points": {"done": 3, "failed": 1}, "updated": 150.0}, "failed since both"),
        ({"state": "4/4 done", "points": {"done": 4}, "updated": 50.0}, ""),
    ],
)
def test_failed_and_recent_ones_can_be_chosen(row: dict[str, Any], fits: str, tmp_path: Path) -> None:
    choices = {
        "failed": Rows([], tmp_path, False, failed=True),
        "since": Rows([], tmp_path, False, since=100.0),
        "both": Rows([], tmp_path, False, failed=True, since=100.0),
    }
    assert [name for name, wanted in choices.items() if wanted._fits(row)] == fits.split()


def test_a_choice_is_made_among_all_of_them(
    tmp_path: Path, says: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    says({})
    end(make(tmp_path, "failed", "8"), 1)
    today, clock.now = clock.now, NOW
    end(make(tmp_path, "failed-long-ago", "9"), 1)
    clock.now = today
    for number in range(30):  # more than are shown without a choice, and newer
        end(make(tmp_path, f"done-{number}", str(10 + number)))

    def ids(*words: str) -> set[str]:
        assert commands.main(["status", "--json", "--runs-dir", str(tmp_path), *words]) == 0
        return {row["run"] for row in json.loads(capsys.readouterr().out)}

    assert ids("--failed") == {"failed", "failed-long-ago"}
    assert ids("--failed", "--since", "1d") == {"failed"}
    assert len(ids("--since", "2000-01-01")) == 31
    with pytest.raises(ConfigError, match="leave the names out"):
        ids("failed", "--failed")
