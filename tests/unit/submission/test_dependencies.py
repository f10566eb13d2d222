"""What runs that wait for others are told (launcher/submission/dependencies.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ConfigError, RunError, SubmissionError
from launcher.job import wait_for_others as gate
from launcher.monitoring.run_status import RunState
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.job_cache import JobSnapshot
from launcher.schedulers.pbs import client as pbs
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.slurm import client as slurm
from launcher.schedulers.slurm.client import Slurm
from launcher.submission import dependencies, prepare, render
from launcher.submission.dependencies import Dependency, StartDecision, decide, jobs_to_wait_for, parse
from tests.unit.plans import bare_plan, make_config
from tests.unit.sandbox import DRIVER, Sandbox


def other(condition: str, state: str, *jobs: str, scheduler: str | None = "slurm") -> Dependency:
    over = state not in ("queued", "running", "unknown")
    return Dependency(
        condition, "prep", Path("/runs/prep"), state, state == "done", over, state == "lost", scheduler, jobs
    )


@pytest.mark.parametrize(
    ("condition", "state", "word"),
    [
        ("ok", "done", StartDecision.START), ("ok", "failed", StartDecision.NEVER),
        ("ok", "running", StartDecision.WAIT),
        ("ok", "stopped", StartDecision.NEVER), ("ok", "cancelled", StartDecision.NEVER),
        ("ok", "unknown", StartDecision.WAIT),
        ("any", "done", StartDecision.START), ("any", "failed", StartDecision.START),
        ("any", "queued", StartDecision.WAIT),
        ("failed", "done", StartDecision.NEVER), ("failed", "failed", StartDecision.START),
        ("failed", "lost", StartDecision.START),
        ("failed", "queued", StartDecision.WAIT),
    ],
)  # fmt: skip
def test_a_condition_comes_about_or_not(condition: str, state: str, word: StartDecision) -> None:
    assert other(condition, state).decision is word
    assert decide([other("any", "done"), other(condition, state)])[0] is word


def test_what_never_comes_about_counts_before_what_is_waited_for() -> None:
    word, why = decide([other("ok", "running"), other("ok", "failed")])
    assert word is StartDecision.NEVER
    assert why == "prep is failed, and after=ok:prep was asked for"
    assert decide([]) == (StartDecision.START, "")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, []), ("prep", [("ok", "prep")]), ("ok:prep", [("ok", "prep")]), ("any:lr/7", [("any", "lr/7")]),
        (["a", "failed:b"], [("ok", "a"), ("failed", "b")]), ("/scratch/a:b/run", [("ok", "/scratch/a:b/run")]),
        ("failed:/scratch/a:b/run", [("failed", "/scratch/a:b/run")]),
    ],
)  # fmt: skip
def test_the_key_is_read(value: Any, found: list[tuple[str, str]]) -> None:
    assert parse(value) == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("okk:prep", "'okk' is no condition. Did you mean ok?"), ("", "name a run or sweep"), ("any:", "name a run"),
        (True, "name a run"), ([["a"]], "name a run"), (1.5, "name a run"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_is_told(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="after=") as refusal:
        parse(value)
    assert words in str(refusal.value)


def test_a_name_that_fits_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.after=nope: no run 'nope'"):
        dependencies.resolve(["ok:nope"], tmp_path, "sweep.after")


@pytest.mark.parametrize(
    ("scheduler", "jobs", "arguments"),
    [
        ("slurm", [], []), ("slurm", ["7", "8_3"], ["--dependency=afterany:7:8_3"]),
        ("pbs", ["7.srv", "8[].srv"], ["-W", "depend=afterany:7.srv:8[].srv"]), ("pbs", [], []),
    ],
)  # fmt: skip
def test_the_scheduler_holds_the_job_until_others_have_ended_in_whatever_way(
    scheduler: str, jobs: list[str], arguments: list[str]
) -> None:
    assert {"slurm": slurm.dependency, "pbs": pbs.dependency}[scheduler](jobs) == arguments


def test_only_jobs_of_what_is_not_over_are_waited_for() -> None:
    all_of_them = [other("any", "failed", "1"), other("ok", "running", "2", "3"), other("ok", "queued", "3")]
    assert jobs_to_wait_for(all_of_them) == ["2", "3"]


def refused(plan: Any, *others: Dependency, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(dependencies, "read_dependencies", lambda names: list(others))
    with pytest.raises(ConfigError) as refusal:
        dependencies.check_dependencies(plan)
    return str(refusal.value)


def test_what_can_never_start_is_refused_before_it_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = bare_plan(after=("ok:/runs/prep",), run_dir="/nowhere/mine")
    assert refused(plan, other("ok", "failed"), monkeypatch=monkeypatch) == (
        "after=ok:prep: it is failed, so this would never start: `resume prep` first, or use after=any:prep"
    )
    done = refused(plan, other("failed", "done"), monkeypatch=monkeypatch)
    assert done == "after=failed:prep: it is done, so this would never start: use after=any:prep"
    assert "running on pbs, and a job of slurm cannot wait for that" in refused(
        plan, other("ok", "running", "1", scheduler="pbs"), monkeypatch=monkeypatch
    )
    assert "running on this machine" in refused(plan, other("ok", "running", scheduler=None), monkeypatch=monkeypatch)
    assert "has no job to wait for" in refused(plan, other("ok", "queued"), monkeypatch=monkeypatch)
    itself = bare_plan(after=("ok:/runs/prep",), run_dir="/runs/prep")
    assert "cannot wait for itself" in refused(itself, other("ok", "queued", "1"), monkeypatch=monkeypatch)
    own = bare_plan(
        after=("ok:/runs/prep",), run_dir="/nowhere/mine", cluster={"directives": {"dependency": "singleton"}}
    )
    assert "exclude each other" in refused(own, other("ok", "done"), monkeypatch=monkeypatch)


def test_what_has_come_about_already_needs_no_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "read_dependencies", lambda names: [other("ok", "done")])
    plan = bare_plan(after=("ok:/runs/prep",), run_dir="/nowhere/mine")
    assert dependencies.check_dependencies(plan) == ()
    assert dependencies.blocking_jobs(plan) == []


def test_a_run_that_has_begun_waits_no_more_and_keeps_what_it_waited_for(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "mine")
    plan = bare_plan(run_id="mine", run_dir=str(run.path), after=(f"ok:{tmp_path}/gone",))
    run.write_record(plan, {}, {"token": "t"})
    config = make_config(after="gone", run_id="mine", runs_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="no run 'gone'"):
        prepare.site_of(config, "mine", None)
    events = Attempt(run, 0).events_file("after")
    events.parent.mkdir(parents=True)
    events.write_text(json.dumps({"time": 1.0, "event": "after", "others": []}) + "\n")
    assert dependencies.conditions_met(run)
    assert prepare.site_of(config, "mine", None).after == (f"ok:{tmp_path}/gone",)
    assert dependencies.blocking_jobs(plan) == []


def test_only_the_script_of_a_run_that_waits_looks_at_others() -> None:
    assert "launcher.job.wait_for_others" in render.rendered(bare_plan(after=("ok:/runs/prep",)), token="t").job
    assert "launcher.job.wait_for_others" not in render.rendered(bare_plan(), token="t").job


def test_the_points_of_a_sweep_have_what_the_sweep_waits_for(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Run.create(tmp_path / name).write_record(bare_plan(run_id=name), {}, {})
    config = make_config(after="one", runs_dir=str(tmp_path))
    config.sweep.after = ["any:two"]
    assert prepare.site_of(config, "lr/0", None).after == (f"ok:{tmp_path}/one", f"any:{tmp_path}/two")
    assert prepare.site_of(config, "single", None).after == (f"ok:{tmp_path}/one",)


@pytest.mark.parametrize(
    ("code", "ends", "attempts", "started"),
    [(0, 0, 1, True), (10, 0, 0, False), (93, 93, 1, False), (75, 75, 1, False)],
)
def test_a_script_begins_goes_back_to_wait_or_ends_as_it_is_told(
    code: int, ends: int, attempts: int, started: bool, tmp_path: Path
) -> None:
    sandbox = Sandbox(tmp_path)
    sandbox.python.write_text(f'{DRIVER}[[ " $* " != *" launcher.job.wait_for_others "* ]] || exit {code}\n')
    outcome = sandbox.execute(sandbox.plan(after=("ok:/runs/prep",)))
    assert (outcome.code, outcome.started) == (ends, started)
    assert len(list((sandbox.run_dir / "attempts").iterdir())) == attempts
    assert not (sandbox.run_dir / "lease").exists()
    if attempts:
        assert outcome.events()[-1] == {"event": "ended", "code": ends}


class Gate:
    """A run whose script asks whether it may begin, and others that change from look to look."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, looks: list[list[Dependency]], **plan: Any
    ) -> None:
        self.run = Run.create(folder / "mine")
        plan = {"run_id": "mine", "run_dir": str(self.run.path), "after": ("ok:/runs/prep",), **plan}
        self.run.write_record(bare_plan(**plan), {}, {"token": "t"})
        (self.run.path / "attempts/0/events").mkdir(parents=True)
        monkeypatch.setenv("LAUNCHER_RUN_DIR", str(self.run.path))
        monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
        self.looks, self.jobs, self.slept = looks, [], []  # type: ignore[var-annotated]
        monkeypatch.setattr(gate, "read_dependencies", lambda names: looks.pop(0) if len(looks) > 1 else looks[0])
        monkeypatch.setattr(gate.time, "sleep", self.slept.append)
        monkeypatch.setattr(gate, "resubmit", self._resubmit)

    def _resubmit(self, plan: Any, run: Run, suffix: str, *_: Any) -> str:
        self.jobs.append(suffix)
        if self.refuse:
            raise SubmissionError("not from a node")
        return "8"

    refuse = False

    @property
    def events(self) -> list[str]:
        return [event["event"] for event in self.run.attempts()[0].events()]


def test_a_run_begins_when_all_has_come_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "done")]])
    assert gate.main() == 0
    assert at.events == ["after"]
    assert dependencies.conditions_met(at.run)
    at.looks[0] = [other("ok", "failed")]
    assert gate.main() == 0, "later attempts look no more"


def test_of_the_points_of_a_sweep_one_looks_at_what_all_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [[other("ok", "done")]]
    at = Gate(tmp_path, monkeypatch, looks)
    sweep = tmp_path / "sweep"
    points = [Run.create(sweep / str(number)) for number in range(3)]
    for number, point in enumerate(points):
        after = ("ok:/runs/prep",) if number < 2 else ("ok:/runs/another",)
        point.write_record(
            bare_plan(run_id=f"sweep/{number}", run_dir=str(point.path), after=after), {}, {"token": "t"}
        )
        (point.path / "attempts/0/events").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    seen: list[Any] = []
    monkeypatch.setattr(gate, "read_dependencies", lambda names: seen.append(names) or at.looks[0])  # type: ignore[func-returns-value]
    for point in points:
        monkeypatch.setenv("LAUNCHER_RUN_DIR", str(point.path))
        assert gate.main() == 0
        (met,) = [event for event in point.attempts()[0].events() if event["event"] == "after"]
        assert [each["state"] for each in met["others"]] == ["done"]
    assert seen == [("ok:/runs/prep",), ("ok:/runs/another",)], "the third waits for something else"
    assert dependencies.conditions_met(points[1])


def test_a_job_that_was_too_early_hands_over_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "queued", "7")]])
    assert gate.main() == gate.ELSEWHERE
    assert (at.jobs, at.slept, at.events) == (["w0"], [], [])


def test_a_job_that_may_not_submit_waits_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "queued", "7")]] * 3 + [[other("ok", "done")]])
    at.refuse = True
    assert gate.main() == 0
    assert at.jobs == ["w0"], "it tries once"
    assert len(at.slept) == 3
    told = capsys.readouterr().err
    assert "no other job could be submitted to wait (not from a node)" in told
    assert told.count("mine waits here: prep is queued") == 1


@pytest.mark.parametrize(
    "plan", [{"cluster": {"scheduler": "local"}}, {"resume": {"how": "chain"}}, {"race": ({}, {"member": 1})}]
)
def test_a_run_of_this_machine_a_chain_and_a_race_wait_where_they_are(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "running", "7")], [other("ok", "done")]], **plan)
    assert gate.main() == 0
    assert (at.jobs, len(at.slept)) == ([], 1)


def test_what_never_comes_about_ends_the_run_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "failed")]])
    assert gate.main() == 93
    (event,) = at.run.attempts()[0].events()
    assert event["event"] == "fault"
    assert event["error"] == "prep is failed, and after=ok:prep was asked for"
    assert not dependencies.conditions_met(at.run)


def test_a_lost_run_is_looked_at_for_a_while_before_it_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "lost")], [other("ok", "lost")], [other("ok", "done")]])
    assert gate.main() == 0
    assert len(at.slept) == 2
    at = Gate(tmp_path / "again", monkeypatch, [[other("ok", "lost")]])
    monkeypatch.setattr(gate, "RECHECK_TIME", 0.0)
    assert gate.main() == 93


@pytest.mark.parametrize("name", ["cancelled", "stop"])
def test_a_run_that_is_cancelled_while_it_waits_stays_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Gate(tmp_path, monkeypatch, [[other("ok", "running")]], cluster={"scheduler": "local"})
    (at.run.path / name).touch()
    assert gate.main() == 75


def test_a_record_that_is_gone_never_comes_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Gate(tmp_path, monkeypatch, [[]])

    def gone(names: Any) -> list[Dependency]:
        raise RunError("/runs/prep is not a run: it has no record.json")

    monkeypatch.setattr(gate, "read_dependencies", gone)
    assert gate.main() == 93
    assert at.events == ["fault"]


def test_those_who_wait_are_told_of_a_new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prep, mine = Run.create(tmp_path / "prep"), Run.create(tmp_path / "mine")
    plan = bare_plan(run_id="mine", run_dir=str(mine.path), after=(f"ok:{prep.path}",))
    mine.write_record(plan, {}, {})
    mine.journal(kinds.Submitted(job="9"))
    now = [other("ok", "queued", "7")]
    monkeypatch.setattr(dependencies, "read_dependencies", lambda names: now)
    now[0] = replace(now[0], path=prep.path)
    assert dependencies.blocking_jobs(plan) == ["7"]
    now[0] = replace(now[0], jobs=("8",))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(Slurm, "run", lambda self, *command: asked.append(command) or "")  # type: ignore[func-returns-value]
    assert dependencies.update_followers(prep.path) == []
    assert asked == [("scontrol", "update", "JobId=9", "dependency=afterany:8")]

    def refuses(self: Slurm, *command: str) -> str:
        raise QueryError("scontrol failed: Access denied")

    monkeypatch.setattr(Slurm, "run", refuses)
    assert dependencies.update_followers(prep.path) == ["mine: scontrol failed: Access denied"]
    (mine.path / "attempts/0").mkdir()
    assert dependencies.update_followers(prep.path) == [], "it has begun"


def test_who_waits_for_many_points_and_their_sweep_is_released_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, points = Run.create(tmp_path / "mine"), [tmp_path / "lr" / str(number) for number in range(3)]
    mine.write_record(bare_plan(run_id="mine", run_dir=str(mine.path), after=("any:lr",)), {}, {})
    mine.journal(kinds.Submitted(job="9"))
    monkeypatch.setattr(dependencies, "read_dependencies", lambda names: [other("any", "cancelled")])
    for home in (tmp_path / "lr", *points[:2]):
        (home / dependencies.FOLLOWERS).mkdir(parents=True)
        (home / dependencies.FOLLOWERS / "mine").write_text(str(mine.path))
    (tmp_path / "lr/sweep.json").touch()
    released: list[tuple[Path, str]] = []
    found = dependencies.update_followers(
        *points, tmp_path / "lr", release=lambda run, plan, job, _: released.append((run.path, job))
    )
    assert (found, released) == ([], [(mine.path, "9")])


@pytest.mark.parametrize(
    ("state", "job", "kept", "listed", "calls"),
    [
        (RunState.QUEUED, "9", True, True, ["submitted", "9"]), (RunState.QUEUED, "10", True, True, []),
        (RunState.RUNNING, "9", True, True, []), (RunState.LOST, "9", True, True, []),
        # OpenPBS deletes the jobs that wait for one that is deleted while it waits itself.
        (RunState.LOST, "9", False, True, ["submitted"]), (RunState.FAILED, "9", False, True, ["submitted"]),
        (RunState.LOST, "10", False, True, []), (RunState.UNKNOWN, "9", True, True, None),
        # Its owner has deleted it: PBS's history says so; without one, it was gone before the other was cancelled.
        (RunState.CANCELLED, "9", False, True, []), (RunState.LOST, "9", False, False, []),
        (RunState.LOST, "9", False, None, ["submitted"]),  # it was submitted after the scheduler was asked
    ],
)  # fmt: skip
def test_only_the_job_that_still_waits_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RunState, job: str, kept: bool,
    listed: bool | None, calls: list[str] | None,
) -> None:  # fmt: skip
    """Between the first look and the lock, another `cancel` may have released it, or ended it."""
    mine, plan = Run.create(tmp_path / "mine"), bare_plan(cluster={"scheduler": "pbs"})
    mine.write_record(plan, {}, {})
    history = SimpleNamespace(job_id=job, cancelled=False, submitted=100.0)
    jobs = {"9": SchedulerJob("9", JobState.PENDING, "H")} if listed else {}
    before = JobSnapshot(jobs, 50.0 if listed is None else 200.0)
    seen = SimpleNamespace(state=state, history=history, job=SimpleNamespace(problem="no answer"))
    monkeypatch.setattr(gate, "status_of", lambda run, live: seen)
    monkeypatch.setattr(gate, "is_kept", lambda plan, job: kept)
    done: list[str] = []
    monkeypatch.setattr(gate, "_submit_again", lambda *rest: done.append("submitted") or "11")  # type: ignore[func-returns-value]
    monkeypatch.setattr(gate, "queries", lambda plan: SimpleNamespace(cancel=done.append, key=str))
    if calls is None:
        with pytest.raises(QueryError, match="its job 9 may stay held: no answer"):
            gate.submit_released(mine, plan, "9", [], before, lambda *_: None)
    else:
        gate.submit_released(mine, plan, "9", [], before, lambda *_: None)
    assert done == (calls or [])


def test_what_waits_is_told_of_the_new_job_though_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, plan = Run.create(tmp_path / "mine"), bare_plan(cluster={"scheduler": "pbs"})
    mine.write_record(plan, {}, {})
    history = SimpleNamespace(job_id="9", cancelled=False, submitted=100.0)
    monkeypatch.setattr(gate, "status_of", lambda *_: SimpleNamespace(state=RunState.QUEUED, history=history))
    monkeypatch.setattr(gate, "is_kept", lambda *_: True)
    monkeypatch.setattr(gate, "_submit_again", lambda *_: "11")

    def refuses(job: str) -> None:
        raise QueryError("no answer")

    told: list[str] = []
    monkeypatch.setattr(gate, "queries", lambda plan: SimpleNamespace(cancel=refuses, key=str))
    monkeypatch.setattr(gate, "tell_followers", lambda run, job: told.append(job))
    with pytest.raises(QueryError, match="it goes on in job 11, but its job 9 stays held: no answer"):
        gate.submit_released(mine, plan, "9", [], JobSnapshot(), lambda *_: None)
    assert told == ["11"]


def test_what_cannot_be_submitted_again_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        run = Run.create(tmp_path / name)
        run.write_record(bare_plan(run_id=name, run_dir=str(run.path), after=("any:prep",)), {}, {})
        run.journal(kinds.Submitted(job="9"))
        (tmp_path / "prep" / dependencies.FOLLOWERS).mkdir(parents=True, exist_ok=True)
        (tmp_path / "prep" / dependencies.FOLLOWERS / name).write_text(str(run.path))
    monkeypatch.setattr(dependencies, "read_dependencies", lambda names: [other("any", "cancelled")])

    def refuses(*_: Any) -> None:
        raise SubmissionError("job limit")

    found = dependencies.update_followers(tmp_path / "prep", release=refuses)
    assert sorted(found) == ["one: job limit", "two: job limit"]


@pytest.mark.parametrize(
    ("held", "holds", "submitted"),
    [
        ([["7"]], True, [("-f", "-W", "depend=afterany:7")]),
        ([["7"], []], False, [("-f", "-W", "depend=afterany:7"), ("-f",)]),  # it ended meanwhile, and PBS forgot it
        ([["7"], ["7"]], False, [("-f", "-W", "depend=afterany:7")]),
        ([[]], True, [("-f",)]),
    ],
)
def test_a_job_that_pbs_deletes_because_the_other_was_over_by_then_is_submitted_again(
    held: list[list[str]],
    holds: bool,
    submitted: list[tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run.create(tmp_path / "mine")
    plan = bare_plan(run_id="mine", run_dir=str(run.path), cluster={"scheduler": "pbs"}, after=("ok:/runs/prep",))
    executor = RunExecutor(run, plan, "token", scripts=render, blocking_jobs=lambda: held.pop(0))
    asked: list[tuple[str, ...]] = []

    def submit(self: PBS, script: str, environment: Any, *arguments: str) -> str:
        asked.append(arguments)
        return f"{len(asked)}.srv"

    monkeypatch.setattr(PBS, "submit", submit)
    monkeypatch.setattr(PBS, "holds", lambda self, job_id: holds)
    assert executor._send(run.path / "script.sh") == f"{len(submitted)}.srv"
    assert asked == submitted
