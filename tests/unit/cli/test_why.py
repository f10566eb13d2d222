"""How `why` shows an explanation, and what it says of runs that do not wait."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli import why
from launcher.cli.why import as_json, explain, moment, of_why, shown, start_lines
from launcher.errors import RunError
from launcher.monitoring import run_status
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import history_of
from launcher.runs.point_claims import Claims, EntryKind, Manager
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.pending import Explanation, Option, PendingFacts, Why
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.scheduler import SlurmScheduler
from launcher.submission.dependencies import Dependency
from tests.unit.pilots.managers import packed_sweep
from tests.unit.plans import bare_plan, plan_of
from tests.unit.sweep_runs import make_sweep

NOW = time.mktime((2026, 11, 21, 21, 0, 0, 0, 0, -1))
LONG = Explanation(
    "a-run-with-a-long-name-20261121-074601-3f9c", "queued", Why.ROOM, "12",
    PendingFacts(meaning="jobs of higher priority are in front of it " * 3),
    code="Priority", do="`sprio -l -j 12` tells what its priority is made of, and more than that as well",
    starts=NOW + 600, limits=("partition gpu: MaxTime=02:00:00, and it asks for 05:00:00", "another limit"),
    nodes=("partition gpu: 4 nodes: 3 allocated, 1 planned, 1 mixed, 1 drained, 1 down, 1 maint, 1 reserved, 1 idle",),
    tried=(Option((), NOW + 600), Option(("cluster.partition=urgent",), NOW, "its tier is higher: it may cost more")),
    commands=("launcher cancel r", "launcher resume r nodes=2"), notes=("a note " * 20,),
)  # fmt: skip


def test_everything_fits_a_terminal() -> None:
    lines = shown(LONG, NOW).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{LONG.run}: queued, job 12"
    for words in ("  reason  Priority", "  starts  21:10 (in 10 min), says the scheduler", "another limit", "as it is"):
        assert any(words in line for line in lines)


def test_without_an_estimate_it_says_so() -> None:
    assert "has no estimate" in shown(Explanation("r", "queued", Why.UNKNOWN), NOW)
    assert "estimate" not in shown(Explanation("r", "done", Why.DONE), NOW)


def test_a_submission_says_when_it_starts_and_what_would_start_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["launcher"])
    fewer = Option(("nodes=2",), NOW)
    known = replace(LONG, options=(fewer,))
    assert start_lines(known, NOW) == [
        "start      21:10 (in 10 min), says the scheduler",
        f"sooner     now with nodes=2: launcher why {LONG.run}",
    ]
    unknown = replace(known, starts=None, tried=(Option((), None), fewer))  # PBS without estimates
    assert start_lines(unknown, NOW) == [f"sooner     now with nodes=2: launcher why {LONG.run}"]
    assert start_lines(Explanation("r", "queued", Why.UNKNOWN), NOW) == []
    assert start_lines(replace(known, state="running"), NOW) == []


@pytest.mark.parametrize(
    ("why", "facts", "text"),
    [
        (Why.ROOM, PendingFacts(meaning="the nodes are in use", scheduler="slurm"), "the nodes are in use"),
        (Why.UNKNOWN, PendingFacts(job_state="PENDING", reason="Odd"), "the scheduler says PENDING (Odd)"),
        (
            Why.ALLOCATED,
            PendingFacts(scheduler="Slurm", job_state="RUNNING"),
            "it waited until now: Slurm says RUNNING",
        ),
        (Why.RUNNING, PendingFacts(), "it runs, and has not reported yet"),
        (Why.RUNNING, PendingFacts(seconds=120, step=3, total=9), "it has run for 00:02:00, step 3 of 9"),
        (
            Why.RUNNING,
            PendingFacts(seconds=120, step=3, reason="Odd"),
            "it has run for 00:02:00, step 3 (the scheduler says Odd)",
        ),
        (
            Why.RUNNING,
            PendingFacts(error="late", reason="Odd"),
            "it runs, and has not reported yet (its scheduler does not answer: late)",
        ),
        (Why.NO_STATE, PendingFacts(), "its state is not known: its scheduler does not answer"),
        (Why.NO_STATE, PendingFacts(error="late"), "its state is not known: late"),
        (
            Why.NO_STATE,
            PendingFacts(scheduler="slurm", job_state="NEW", reason="Odd"),
            "its state is not known: slurm says NEW (Odd), a state that the launcher does not know, so it counts as "
            "not over",
        ),
        (Why.ENDED, PendingFacts(cause="rank 1 exited with code 7"), "rank 1 exited with code 7"),
        (Why.ENDED, PendingFacts(), "no rank reported a cause"),
        (Why.CANCELLED, PendingFacts(), "it was cancelled"),
    ],
)
def test_the_text_is_made_of_the_code_and_the_facts(why: Why, facts: PendingFacts, text: str) -> None:
    assert of_why(Explanation("r", "s", why, facts=facts)) == text


@pytest.mark.parametrize("why", Why)
def test_each_code_has_a_text(why: Why) -> None:
    assert of_why(Explanation("r", "s", why))


def test_json_has_the_text_its_code_and_the_known_facts() -> None:
    found = as_json(Explanation("r", "running", Why.RUNNING, "7", PendingFacts(seconds=120, step=3)))
    assert (found["why"], found["why_code"]) == ("it has run for 00:02:00, step 3", "running")
    assert found["facts"] == {"seconds": 120, "step": 3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (-500, "now"),
        (40, "21:00 (in 1 min)"),
        (600, "21:10 (in 10 min)"),
        (2 * 3600, "23:00 (in 2 h)"),
        (4 * 3600, "Sun 22 Nov 01:00 (in 4 h)"),
        (3 * 86400, "Tue 24 Nov 21:00 (in 3 days)"),
    ],
)
def test_a_start_is_told_as_a_time_and_a_wait(seconds: float, text: str) -> None:
    assert moment(NOW + seconds, NOW) == text


def made(folder: Path, *events: str) -> Run:
    run = Run.create(folder / "r")
    plan = plan_of(cluster={"name": "local", "scheduler": "local"})
    run.write_record(replace(plan, run_id="r"), {}, {"overrides": []})
    run.journal(kinds.Submitted(job="local-1"))
    attempt = run.path / "attempts/0/events"
    attempt.mkdir(parents=True)
    (attempt / "script.jsonl").write_text("".join(f"{event}\n" for event in events))
    return run


STARTED = '{"time": 1.0, "event": "started", "job": "local-1", "host": "h"}'
STOP = '{"time": 2.0, "event": "stop", "reason": "time_limit", "step": 7}'


@pytest.mark.parametrize(
    ("events", "state", "why", "do"),
    [
        ((STARTED, '{"time": 2.0, "event": "ended", "code": 0}'), "done", "it is done", "report"),
        ((STARTED, '{"time": 2.0, "event": "ended", "code": 1}'), "failed", "exit code 1", "post-mortem"),
        ((STARTED, STOP, '{"time": 3.0, "event": "ended", "code": 75}'), "stopped", "its time is nearly up", "resume"),
        ((STARTED,), "lost", "its script recorded no end", "post-mortem"),
    ],
)
def test_a_run_that_is_over_is_told_in_a_line(
    tmp_path: Path, events: tuple[str, ...], state: str, why: str, do: str
) -> None:
    found = explain(made(tmp_path, *events), "launcher")
    assert found.state == state
    assert why in of_why(found)
    assert do in found.do


def test_a_point_that_waits_for_its_turn_says_how_many_run_at_once(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 3, array=None, parallelism=1)
    assert explain(sweep.run(2), "launcher").why is Why.NOT_SUBMITTED
    sweep.request_local([2], restart=False)
    found = explain(sweep.run(2), "launcher")
    assert (found.state, found.why) == ("waiting", Why.TURN)
    assert found.limits == (f"sweep {sweep.id}: 1 point at once (sweep.parallelism)",)
    assert found.do == f"`launcher sweep throttle {sweep.id} N` changes how many run at once"


def test_a_point_of_a_packed_sweep_waits_for_a_slot(tmp_path: Path) -> None:
    """It has no job of its own, so that it has none is no sign of an interrupted submission."""
    sweep = packed_sweep(tmp_path, 2)
    found = explain(sweep.run(1), "launcher")
    assert (found.state, found.why) == ("waiting", Why.NO_PILOT)
    assert f"`launcher why {sweep.id}-pilot-0`" in found.do
    Claims(sweep.path, 0).note(
        Manager(0, 0, 0, 0), kinds.ManagerBegan(host="n1", job="1", slots=1, pid=1, start=1, namespace="", time=1.0)
    )
    found = explain(sweep.run(1), "launcher")
    assert (found.state, found.why) == ("waiting", Why.SLOT)
    assert found.do == f"`launcher sweep throttle {sweep.id} N` changes how many pilots there are"


def test_the_runs_that_it_waits_for_are_named_with_their_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = made(tmp_path)
    run = Run.create(tmp_path / "follower")
    run.write_record(replace(plan_of(), run_id="follower", after=(f"any:{other.path}",)), {}, {"overrides": []})
    run.journal(kinds.Submitted(job="7"))
    monkeypatch.setattr(
        run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.PENDING, "PENDING", "Dependency")
    )
    reason = Explanation("follower", "queued", Why.WAITS, "7", PendingFacts(meaning="it waits for other jobs"))
    monkeypatch.setattr(SlurmScheduler, "explain", lambda *_: reason)
    found = explain(run, "launcher")
    assert as_json(found)["awaited"] == ({"id": "r", "condition": "any", "state": "queued"},)
    assert "  after   r is queued (after=any:r)" in shown(found, NOW).splitlines()
    shutil.rmtree(other.path)
    assert [note for note in explain(run, "launcher").notes if note.startswith("after: ")]


@pytest.mark.parametrize(
    ("scheduler", "state", "held"),
    [("pbs", "queued", False), ("pbs", "cancelled", True), ("slurm", "queued", False), ("slurm", "cancelled", False)],
)
def test_a_job_that_is_held_for_nothing_is_to_be_submitted_again(
    monkeypatch: pytest.MonkeyPatch, scheduler: str, state: str, held: bool
) -> None:
    """After a deletion by hand PBS holds a job for ever."""
    other = Dependency("ok", "prep", Path("/runs/prep"), state, False, state != "queued")
    monkeypatch.setattr(why, "read_dependencies", lambda names: [other])
    plan = bare_plan(after=("ok:/runs/prep",), cluster={"scheduler": scheduler})
    found = why._after(Explanation("mine", "queued", Why.WAITS, "7", PendingFacts(), do="wait"), plan, "launcher")
    assert found.do.startswith("`launcher cancel mine`, and submit it again" if held else "wait")
    assert bool(found.notes) is held


def test_a_point_whose_record_cannot_be_read_is_not_called_never_submitted(tmp_path: Path) -> None:
    """Its job may run: who believed that would start the point a second time."""
    sweep = make_sweep(tmp_path, 2)
    (sweep.run(0).path / "record.json").write_text("{")
    with pytest.raises(RunError, match=r"record\.json cannot be read"):
        explain(sweep.run(0), "launcher")


def test_a_point_of_a_pilot_without_an_attempt_is_not_waiting_if_it_runs_or_is_over(tmp_path: Path) -> None:
    sweep, manager = packed_sweep(tmp_path, 2), Manager(0, 0, 0, 0)
    claims = Claims(sweep.path, 0)
    claims.note(
        manager, kinds.ManagerBegan(host="n1", job="1", slots=1, pid=1, start=1, namespace="", time=time.time())
    )
    for point in range(2):
        claims.add(point, 0, EntryKind.CLAIMED, manager)
    claims.add(1, 1, EntryKind.FATAL, manager)  # its process could not be started
    found = [explain(sweep.run(point), "launcher") for point in range(2)]
    assert [(each.state, each.why) for each in found] == [("running", Why.RUNNING), ("failed", Why.ENDED)]
    assert f"`launcher sweep rerun {sweep.id} 1`" in found[1].do


@pytest.mark.parametrize(("says", "state"), [({}, "not in the queue"), (None, "its state is not known now")])
def test_a_job_of_a_race_is_gone_only_if_the_scheduler_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: dict[str, SchedulerJob] | None, state: str
) -> None:
    def jobs(_: object) -> dict[str, SchedulerJob]:
        if says is None:
            raise QueryError("squeue failed")
        return says

    monkeypatch.setattr(Slurm, "jobs", jobs)
    run = Run.create(tmp_path / "r")
    run.write_record(plan_of(), {"cluster": {"race": ["a", "b"]}}, {"overrides": []})
    history = history_of([{"time": 1.0, "event": "submitted", "job": "7", "chain": ["8"], "race": True}], None, ())
    seen = run_status.RunStatus(run, bare_plan(race=({}, {})), history, run_status.RunState.QUEUED, None)
    assert why.of_race(seen, run_status.JobMonitor()) == [f"job 7 (a): {state}", f"job 8 (b): {state}"]
