"""Whether and how a run goes on after an attempt that stopped early."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.config.overrides import opened
from launcher.config.schema import Program, Resume, ResumeHow
from launcher.errors import ConfigError, RunError
from launcher.failures.codes import NextReason
from launcher.files import retried_reads
from launcher.files.retried_reads import read_json, unwrap
from launcher.job import requeue
from launcher.job.requeue import What, counted, decide
from launcher.monitoring.run_status import RunState
from launcher.runs import user_checkpoints
from launcher.runs.directory import Attempt, Events, Run, token_of
from launcher.runs.events import Continues, Started, Stays, Stopped, Submitted, Submitting
from launcher.runs.history import read_history
from launcher.runs.job_file import NAME
from launcher.schedulers.base import Ending, QueryError
from launcher.schedulers.run_command import SubmissionRefused
from launcher.schedulers.slurm.scheduler import SlurmScheduler
from launcher.submission import prepare, resume
from launcher.submission.resume import merged_overrides
from launcher.submission.submit import SubmittedRun
from tests.unit.clock import Clock
from tests.unit.plans import bare_plan, plan_of, with_fields

NEVER, FEW = Resume(how=ResumeHow.never), Resume(max_attempts=3)
LOCAL = {"scheduler": "local"}
PREEMPTED = Ending(NextReason.SCHEDULER_ENDS, "Slurm", "PREEMPTED")


OWN = {"workload": Program("program", "m:f", seed=0, script="train.py", checkpoint="out/*")}


@pytest.mark.parametrize(
    ("keys", "steps", "marker", "ending", "what", "reason", "details"),
    [
        ({}, [10], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({"cluster": LOCAL}, [10], None, None, What.HERE, NextReason.RESUMABLE, {}),
        ({}, [10], "stop", None, What.STAYS, NextReason.STOP_FILE, {}),
        ({}, [10], "cancelled", None, What.STAYS, NextReason.CANCELLED, {}),
        ({"resume": NEVER}, [10], None, None, What.STAYS, NextReason.RESUME_NEVER, {}),
        ({}, [10], None, Ending(NextReason.STOP_REQUESTED), What.STAYS, NextReason.STOP_REQUESTED, {}),
        (
            {},
            [10],
            None,
            PREEMPTED,
            What.STAYS,
            NextReason.SCHEDULER_ENDS,
            {"scheduler": "Slurm", "state": "PREEMPTED"},
        ),
        # No progress: once may be bad luck, twice in a row is none.
        ({}, [-1], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({}, [-1, -1], None, None, What.GIVEN_UP, NextReason.NO_PROGRESS, {"step": 0, "limit": 3600}),
        ({}, [10, 10], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({}, [10, 10, 10], None, None, What.GIVEN_UP, NextReason.NO_PROGRESS, {"step": 10, "limit": 3600}),
        ({}, [10, 10, 11, 11], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({}, [10, 9, 9], None, None, What.GIVEN_UP, NextReason.NO_PROGRESS, {"step": 9, "limit": 3600}),
        ({}, [-1, 5, 5], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({"resume": FEW}, [1, 2], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
        ({"resume": FEW}, [1, 2, 3], None, None, What.GIVEN_UP, NextReason.MAX_ATTEMPTS, {"attempts": 3}),
        (  # it starts again, whatever is said of it now
            {"resume": FEW},
            [1, 2, 3],
            None,
            PREEMPTED,
            What.STAYS,
            NextReason.SCHEDULER_ENDS,
            {"scheduler": "Slurm", "state": "PREEMPTED"},
        ),
        ({}, [-1, -1], "stop", None, What.STAYS, NextReason.STOP_FILE, {}),
        (
            OWN,
            [-1, -1],
            None,
            None,
            What.GIVEN_UP,
            NextReason.NO_PROGRESS,
            {"saves_in": "/runs/run-1/checkpoints, out/*", "limit": 3600},
        ),
        (OWN, [-1, 0], None, None, What.ELSEWHERE, NextReason.RESUMABLE, {}),
    ],
)
def test_what_becomes_of_a_run(
    keys: dict[str, Any], steps: list[int], marker: str | None, ending: Ending | None, what: What, reason: NextReason,
    details: dict[str, Any],
) -> None:  # fmt: skip
    found = decide(plan_of(**keys), len(steps) - 1, steps, marker, ending)
    name = what.name.lower()
    if reason is NextReason.RESUMABLE:
        assert found == Continues(what=name, reason=reason)
    else:
        assert found == Stays(**{"what": name, "reason": reason, **details})


@pytest.mark.parametrize(
    ("scheduler", "resume", "words"),
    [
        ("pbs", Resume(how=ResumeHow.requeue), "PBS lets only operators requeue"),
        (
            "local",
            Resume(how=ResumeHow.requeue),
            "resume.how=requeue is only for slurm and sge, and the cluster is local",
        ),
        ("local", Resume(how=ResumeHow.chain, max_attempts=3), "needs a scheduler that takes jobs"),
        ("allocation", Resume(how=ResumeHow.resubmit), "needs a scheduler that takes jobs"),
        ("slurm", Resume(how=ResumeHow.chain), "submits resume.max_attempts=100 jobs at once"),
        ("slurm", Resume(lead="1h"), "resume.lead=1h is not less than time=1h"),
        ("slurm", Resume(lead="soon"), "resume.lead: 'soon' is not a time"),
        ("slurm", Resume(max_attempts=0), "resume.max_attempts=0"),
    ],
)
def test_ways_to_go_on_that_there_are_not(scheduler: str, resume: Resume, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        plan_of(cluster={"scheduler": scheduler}, resume=resume)


@pytest.mark.parametrize(("time", "lead"), [("1m", 10), ("10m", 30), ("1h", 120), ("2d", 120)])
def test_an_attempt_stops_a_twentieth_before_its_limit(time: str, lead: int) -> None:
    assert plan_of(time=time).resume.lead == lead


@pytest.mark.parametrize(
    ("before", "now", "result"),
    [
        (["nodes=2", "workload=p2p"], ["nodes=4"], ["workload=p2p", "nodes=4"]),
        (["nodes=2", "run_id=a", "wait=true"], [], ["nodes=2"]),
        (["+cluster.environment.A=1"], ["cluster.environment.A=2"], ["+cluster.environment.A=2"]),
        (["+cluster.environment.A=1"], ["+cluster.environment.A=2"], ["+cluster.environment.A=2"]),
        (["nodes=2"], ["wait=true"], ["nodes=2", "wait=true"]),
        (["++workload.kwargs.a=1"], opened(["workload.kwargs.a=2"]), ["++workload.kwargs.a=2"]),
        (["nodes=2"], opened(["workload.kwargs.b=2"]), ["nodes=2", "++workload.kwargs.b=2"]),
    ],
)
def test_a_resumed_run_is_what_it_was_but_for_what_is_said(
    before: list[str], now: list[str], result: list[str]
) -> None:
    assert merged_overrides(before, now) == result


def test_a_run_that_the_scheduler_does_not_take_again_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SubmissionRefused("sbatch refused the job: invalid account")

    run = Run.create(tmp_path / "run")
    before, now = plan_of(nodes=2), plan_of(nodes=4)
    run.write_record(before, {}, {"token": "token", "overrides": ["nodes=2"]})
    monkeypatch.setattr(resume, "require_commands", lambda plan: None)
    monkeypatch.setattr(resume, "status_of", lambda *_: SimpleNamespace(state=RunState.STOPPED))
    monkeypatch.setattr(resume, "start", refuse)
    for _ in range(2):
        with pytest.raises(SubmissionRefused, match="invalid account"):
            resume.resume(run, prepare.Prepared(now, "token", ()), {}, ["nodes=4"])
        assert run.plan().nodes == 2
        assert run.record()["overrides"] == ["nodes=2"]
        assert not list(run.path.glob("record-*.json"))


@pytest.mark.parametrize("answers", [True, False])
def test_jobs_of_a_failed_chain_are_cancelled_before_its_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    run, told = Run.create(tmp_path / "run"), list[str]()

    def cancel(job: str) -> None:
        assert run.has("over")
        if not answers:
            raise QueryError("scancel failed: Unable to contact slurm controller")
        told.append(f"cancel {job}")

    def start(*_: Any, **__: Any) -> SubmittedRun:
        told.append("start")
        return SubmittedRun(run, "10")

    run.write_record(plan_of(), {}, {"token": "token", "overrides": []})
    run.journal(Submitted(job="7", chain=("8", "9")))
    run.mark("over")
    monkeypatch.setattr(resume, "require_commands", lambda plan: None)
    monkeypatch.setattr(resume, "status_of", lambda *_: SimpleNamespace(state=RunState.FAILED))
    monkeypatch.setattr(resume, "queries", lambda plan: SimpleNamespace(cancel=cancel))
    monkeypatch.setattr(resume, "start", start)
    with contextlib.nullcontext() if answers else pytest.raises(QueryError, match="Unable to contact"):
        resume.resume(run, prepare.Prepared(plan_of(), "token", ()), {}, [])
    assert told == (["cancel 8", "cancel 9", "start"] if answers else [])
    assert run.has("over") is not answers


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_of_which_the_job_before_learned_nothing_is_found_before_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """It would start with the files of the resumed run, but with its own nodes."""
    run, started = Run.create(tmp_path / "run"), list[str]()
    run.write_record(plan_of(), {}, {"token": "token", "overrides": []})
    token = token_of(plan_of().run_dir)
    for event in (Submitting(token=token), Submitted(job="7"), Submitting(token=f"{token}-1")):
        run.journal(event)

    def status_of(*_: object) -> Any:
        return SimpleNamespace(
            state=RunState.QUEUED if read_history(run).job_id == "8" and not ended else RunState.STOPPED
        )

    def start(_: Run, plan: Any, token: str, **__: Any) -> SubmittedRun:
        started.append(token)
        return SubmittedRun(run, "9")

    monkeypatch.setattr(resume, "require_commands", lambda plan: None)
    monkeypatch.setattr(resume, "status_of", status_of)
    monkeypatch.setattr(resume, "start", start)
    monkeypatch.setattr(
        resume, "queries", lambda plan: SimpleNamespace(find=lambda *of: {f"{token}-1": "8"}.get(of[0]))
    )
    with contextlib.nullcontext() if ended else pytest.raises(RunError, match=f"{run.id} is queued"):
        resume.resume(run, prepare.Prepared(plan_of(), token, ()), {}, [])
    assert started == ([f"{token}-r2"] if ended else [])
    assert read_history(run).job_id == "8"


@pytest.mark.parametrize("scheduler", ["pbs", "slurm"])
def test_an_element_of_an_array_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str) -> None:
    """Its environment is the array's. It was resubmitted before, as an element of another one."""
    array, element = Run.create(tmp_path / "run"), Run.create(tmp_path / "run/3")
    own = bare_plan(cluster={"scheduler": scheduler}, run_dir=str(element.path), resume={"how": "resubmit"})
    element.write_record(own, {}, {"token": "token-3"})
    own_array = array.path / "token.environment.sh"
    own_array.write_text("export A=1\n")
    element.write_environment("export A=0\n")
    monkeypatch.setenv("LAUNCHER_ENVIRONMENT_FILE", str(own_array))
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(element.path))
    monkeypatch.setenv("PBS_JOBID", "7[3].server")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HF_TOKEN", "x")
    asked: list[Any] = []

    def submit_behind(*arguments: Any) -> str:
        asked.extend(arguments)
        return "8"

    monkeypatch.setattr(requeue, "submit_behind", submit_behind)
    assert requeue._continue_elsewhere(own, Attempt(element, 1)).job == "8"
    assert asked[:4] == [
        own,
        ["7[3].server" if scheduler == "pbs" else "7"],
        f"{element.path}/script.sh",
        "token-3-2",
    ]
    assert f"LAUNCHER_RUN_DIR={element.path} " in (element.path / "script.sh").read_text()
    assert unwrap(read_json(element.path / NAME))["elements"] is None
    assert ("HF_TOKEN" in asked[4]) == (scheduler == "slurm")  # on PBS it comes from a file
    assert (element.path / "environment.sh").read_text() == f"export A={int(scheduler == 'pbs')}\n"


@pytest.mark.parametrize(
    ("steps", "preempted", "result"),
    [
        ([], [], []),
        ([10, 10], [False, False], [10, 10]),
        ([10, None, 20], [False, False, False], [10, 20]),
        ([-1, -1], [True, True], []),  # preempted twice before the first save
        ([-1, -1, -1], [False, True, False], [-1, -1]),
        ([-1, -1, -1], [False, False, True], []),
        ([-1, -1, None], [False, False, False], []),  # it was resumed by hand, and may have saved since
    ],
)
def test_preempted_attempts_do_not_count_against_a_run(
    steps: list[int | None], preempted: list[bool], result: list[int]
) -> None:
    stopped = [Stopped(step=step, saved=-1, preempted=by) for step, by in zip(steps, preempted, strict=True)]
    assert counted(stopped) == result


@pytest.mark.parametrize(
    ("job", "attempt", "what", "reason"),
    [
        ("8", 5, What.ELSEWHERE, NextReason.CHAIN),  # the first one of a resumed run, which its user deletes
        ("9", 7, What.ELSEWHERE, NextReason.CHAIN),  # those before were preempted, and each has started twice
        ("10", 1, What.GIVEN_UP, NextReason.MAX_ATTEMPTS),  # of which the site has deleted some
        ("11", 1, What.ELSEWHERE, NextReason.CHAIN),  # a command that was killed has not written that it is there
        ("11", 2, What.GIVEN_UP, NextReason.MAX_ATTEMPTS),
    ],
)
def test_a_chain_goes_on_as_long_as_a_job_follows(
    job: str, attempt: int, what: What, reason: NextReason, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = Run.create(tmp_path / "run")
    folders = {"run_dir": str(run.path), "checkpoint": {"dir": f"{run.path}/checkpoints"}}
    run.write_record(bare_plan(resume={"how": "chain", "max_attempts": 3}, **folders), {}, {"token": "t"})
    run.journal(Submitted(job="6", chain=("7",)))
    run.journal(Submitted(job="8", chain=("9", "10")))
    for number in range(attempt + 1):
        (run.path / f"attempts/{number}/events").mkdir(parents=True)
    for name, value in (("RUN_DIR", str(run.path)), ("ATTEMPT", str(attempt)), ("JOB_ID", job)):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    deleted = Ending(NextReason.SCHEDULER_ENDS, "Slurm", "COMPLETING") if job == "8" else None
    monkeypatch.setattr(SlurmScheduler, "ending", lambda *_, **__: deleted)
    monkeypatch.setattr(SlurmScheduler, "preempted", lambda *_: None)
    assert requeue.main(str(run.path), stop_requested=False) == what
    told = [*run.attempts()[-1].events()][-1]
    assert told["reason"] == reason.value
    assert ("no job of its chain follows" in capsys.readouterr().err) is (job == "10")


def test_a_job_that_runs_again_already_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, requeued = Run.create(tmp_path / "run"), list[str]()
    run.write_record(
        bare_plan(run_dir=str(run.path), checkpoint={"dir": f"{run.path}/checkpoints"}), {}, {"token": "t"}
    )
    (run.path / "attempts/0/events").mkdir(parents=True)
    lease = run.path / "lease"
    for name, value in (("RUN_DIR", str(run.path)), ("ATTEMPT", "0"), ("JOB_ID", "7"), ("LEASE", str(lease))):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    scheduler = SimpleNamespace(
        requeues=True, requeue=requeued.append, ending=lambda *_, **__: None, preempted=lambda job: 1.0
    )
    monkeypatch.setattr(requeue.registry, "scheduler", lambda name: scheduler)
    lease.write_text("7 1 node2\n")
    assert requeue.main(str(run.path), stop_requested=False) == What.ELSEWHERE
    assert requeued == []
    assert "attempt 0 has lost the run, whose lease attempt 1 (job 7) holds now" in capsys.readouterr().err
    lease.write_text("7 0 node1\n")
    assert requeue.main(str(run.path), stop_requested=False) == What.ELSEWHERE
    assert requeued == ["7"]


@pytest.mark.parametrize(
    ("scheduler", "job_limit", "requeued", "unable"),
    [("slurm", True, ["7"], False), ("slurm", True, [], True), ("slurm", False, [], False), ("pbs", True, [], False)],
)
def test_a_job_beside_which_no_other_one_is_accepted_is_requeued_where_that_can_be(
    scheduler: str, job_limit: bool, requeued: list[str], unable: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """MaxSubmitJobs=1 of an association or QOS counts the job that ends, too."""

    def refuses(*_: object) -> str:
        raise SubmissionRefused("QOSMaxSubmitJobPerUserLimit", job_limit=job_limit)

    def requeues(_: object, job: str) -> None:
        if unable:
            raise QueryError("scontrol: error: Requested operation is presently disabled")
        asked.append(job)

    plan, asked = bare_plan(cluster={"scheduler": scheduler}, resume={"how": "resubmit"}), list[str]()
    run = Run.create(tmp_path / "run")
    run.write_record(plan, {}, {"token": "t"})
    run.mark("script.sh")
    monkeypatch.setattr(requeue, "submit_behind", refuses)
    monkeypatch.setattr(SlurmScheduler, "requeue", requeues)
    for name in ("LAUNCHER_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.setenv(name, "7")
    if requeued:
        assert requeue._continue_elsewhere(plan, Attempt(run, 0)).reason is NextReason.REQUEUED
    else:
        with pytest.raises(SubmissionRefused):
            requeue._continue_elsewhere(plan, Attempt(run, 0))
    assert asked == requeued
    assert ("so it is requeued" in capsys.readouterr().err) is bool(requeued)
    assert not read_history(run).open, "nobody looks for a job that was refused"


@pytest.mark.parametrize(
    ("found", "step", "saved"),
    [
        (5, -1, 5),
        (TimeoutError(errno.ETIMEDOUT, "too many files"), None, -1),
        (OSError(errno.EIO, "Input/output error"), None, -1),
    ],
)
def test_a_program_whose_saves_cannot_be_seen_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int | OSError, step: int | None, saved: int
) -> None:
    Clock(monkeypatch, retried_reads)
    run = Run.create(tmp_path / "run")
    plan = bare_plan(
        run_dir=str(run.path),
        checkpoint={"dir": f"{run.path}/checkpoints"},
        cluster=LOCAL,
        workload={"kind": "Program", "params": {}},
    )
    run.write_record(plan, {}, {"token": "token"})
    for number in range(3):  # none of the nodes' files, of which there may be thousands, is read
        (run.path / "attempts" / str(number) / "events/node-0.jsonl").mkdir(parents=True)
    for number in range(2):
        Events(Attempt(run, number), "requeue")(Stopped(step=-1, saved=-1, preempted=False))

    def newest(*_: Any) -> int:
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(user_checkpoints, "newest", newest)
    told: list[Any] = []
    decision = requeue._continue(Attempt(run, 2), told.append, False)
    assert decision.what == "here"
    assert (told[0].step, told[0].saved, told[0].preempted) == (step, saved, False)


@pytest.mark.parametrize(("at", "preempted"), [(None, False), (50.0, False), (100.0, True), (150.0, True)])
def test_a_preemption_counts_if_it_began_in_this_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: float | None, preempted: bool
) -> None:
    plan, attempt = bare_plan(), Attempt(Run.create(tmp_path / "run"), 0)
    monkeypatch.setattr(requeue.registry, "scheduler", lambda name: SimpleNamespace(preempted=lambda job: at))
    assert requeue._preempted(plan, attempt) == (at is not None)  # it is unknown when the attempt began
    (attempt.path / "events").mkdir(parents=True)
    Events(attempt, "script")(Started(time=100.5, job="1", host="node1"))
    assert requeue._preempted(plan, attempt) == preempted


def test_files_of_earlier_attempts_are_not_looked_through_once_a_new_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plan = Run.create(tmp_path / "run"), bare_plan(run_dir=str(tmp_path / "run"))
    attempt = Attempt(run, 1)
    (attempt.path / "events").mkdir(parents=True)
    Events(attempt, "script")(Started(job="1", host="node1"))
    began = int(attempt.events()[0]["time"] * 1e9)
    monkeypatch.setattr(user_checkpoints, "newest", lambda plan, enough, seconds: int(enough))
    for saved, enough in ((5, began), (2 * began, 2 * began)):
        assert requeue._saved(plan, attempt, [Stopped(step=-1, saved=saved, preempted=False)]) == enough


def test_an_attempt_that_could_not_read_its_checkpoint_is_not_one_without_progress(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    plan = with_fields(plan_of(), checkpoint={"dir": str(tmp_path / "checkpoints")})
    attempt = Attempt(run, 0)
    events = attempt.path / "events"
    events.mkdir(parents=True)
    assert requeue._reached(plan, attempt) == -1
    (events / "stop.jsonl").write_text('{"time": 1, "event": "stop", "reason": "unreadable"}\n')
    assert requeue._reached(plan, attempt) is None
