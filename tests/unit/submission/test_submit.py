"""A submission that the system cuts short: what is left behind, and what is told. Against stand-ins."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import P2P, Checkpoint, Limits, Resume, ResumeHow, Sweep
from launcher.errors import ConfigError, RunError, SubmissionError
from launcher.processes import Process
from launcher.runs import event_files, lease_and_locks
from launcher.runs.directory import Run
from launcher.runs.events import Event, Submitting, every
from launcher.runs.history import journal_events, read_history
from launcher.runs.lookup import find
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.scheduler import PBSScheduler
from launcher.schedulers.slurm.scheduler import SlurmScheduler
from launcher.submission import submit as submission
from launcher.submission.prepare import prepare
from launcher.submission.resume import resume
from launcher.submission.submit import Interrupted, SubmittedRun, submit
from launcher.sweeps.prepare import prepare_sweep
from tests.launch import until
from tests.unit.faults import FileServer
from tests.unit.plans import make_config
from tests.unit.runs.test_lease_and_locks import Cluster
from tests.unit.slurm_stand_in import SlurmStandIn
from tests.unit.sweep_runs import end
from tests.unit.sweep_site import COMMAND, Site


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIn:
    commands = SlurmStandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", commands.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    return commands


def handed_over(folder: Path, scheduler: str = "slurm", **keys: Any) -> SubmittedRun:
    cluster = {"check": False, "submit_timeout": 10, "scheduler": scheduler}
    return submit(prepare(make_config(runs_dir=str(folder / "runs"), run_id="a", cluster=cluster, **keys)), {})


def full_for(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when this event is to be written."""
    append = event_files.append

    def full(path: Path, told: Event, **how: Any) -> None:
        if told.event == event:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append(path, told, **how)

    monkeypatch.setattr(event_files, "append", full)


@pytest.mark.parametrize("keys", [{}, {"after": "x"}, {"sweep": Sweep()}, {"sweep": Sweep(id="q")}])
def test_a_runs_dir_of_others_is_bad_input(
    keys: dict[str, Any], tmp_path: Path, stand_in: SlurmStandIn, server: FileServer
) -> None:
    server.fail("/runs", number=errno.EACCES)
    with pytest.raises(ConfigError, match=r"^runs_dir=.*/runs: .*EACCES.*: have its permissions changed"):
        if "sweep" in keys:
            prepare_sweep(Site(tmp_path, stand_in).requested(["seed=1"], **keys), COMMAND)
        else:
            handed_over(tmp_path, **keys)


@pytest.mark.parametrize("part", [".record.json.", "payload.pkl", ".script.sh."])
def test_a_disk_that_is_full_before_the_job_is_handed_over_leaves_nothing(
    part: str, tmp_path: Path, stand_in: SlurmStandIn, server: FileServer
) -> None:
    server.fail(part, number=errno.ENOSPC)
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*No space left on device.*make room there"):
        handed_over(tmp_path)
    assert stand_in.calls() == 0
    assert not (tmp_path / "runs" / "a").exists()
    server.recover()
    assert handed_over(tmp_path).job_id == "100"


def test_a_disk_that_is_full_when_the_submission_is_noted_leaves_nothing(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_for("submitting", monkeypatch)
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*journal\.jsonl: No space left"):
        handed_over(tmp_path)
    assert stand_in.calls() == 0
    assert not (tmp_path / "runs" / "a").exists()


def test_a_job_that_cannot_be_noted_is_found_by_the_next_command(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        full_for("submitted", disk)
        with pytest.raises(SubmissionError, match=r"(?s)No space left.*Repeat the command with run_id=a"):
            handed_over(tmp_path)
    assert read_history(Run(tmp_path / "runs" / "a")).job_id is None
    assert handed_over(tmp_path).job_id == "100"
    assert len(stand_in.jobs()) == 1


def after(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Another process, or the user, acts after this one has called a function for the first time."""
    real, left = getattr(owner, name), [other]

    def call(*arguments: Any, **how: Any) -> Any:
        found = real(*arguments, **how)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(owner, name, call)


def test_a_run_kept_elsewhere_is_found_by_its_id_though_its_submission_was_interrupted(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(index))
    with monkeypatch.context() as user:
        after(submission, "start", user, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted, match="`launcher cancel a` ends it"):
            handed_over(tmp_path)
    assert find("a", None) == Run(tmp_path / "runs" / "a")
    assert (index / ".live" / "a").exists()
    (index / "a").unlink()
    assert handed_over(tmp_path).again
    assert find("a", None) == Run(tmp_path / "runs" / "a")


def test_a_refused_run_leaves_nothing_where_commands_look_for_it(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "index"))
    stand_in.set(refusal="#SBATCH")
    with pytest.raises(SubmissionError, match="Invalid license"):
        handed_over(tmp_path)
    assert list((tmp_path / "index").iterdir()) == []


CHAIN = Resume(how=ResumeHow.chain, max_attempts=3)


def test_a_chain_of_which_the_site_refuses_a_part_goes_on_with_the_rest(
    tmp_path: Path, stand_in: SlurmStandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in.set(most_jobs=2)
    made = handed_over(tmp_path, resume=CHAIN)
    assert (made.job_id, read_history(made.run).waiting) == ("100", ("101",))
    assert "launcher: the chain has 2 of 3 jobs: sbatch refused the job: " in capfd.readouterr().err
    assert handed_over(tmp_path, resume=CHAIN).again


def test_jobs_of_a_chain_that_could_not_be_noted_are_found_by_the_next_command(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        full_for("submitted", disk)
        with pytest.raises(SubmissionError, match="No space left"):
            handed_over(tmp_path, resume=CHAIN)
    made = handed_over(tmp_path, resume=CHAIN)
    assert (made.job_id, read_history(made.run).waiting) == ("100", ("101", "102"))
    assert [job.dependency for job in stand_in.jobs()] == ["-", "afterany:100", "afterany:101"]


def test_who_submits_what_they_had_cancelled_before_there_was_a_job_wants_it(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        full_for("submitted", disk)
        with pytest.raises(SubmissionError):
            handed_over(tmp_path)
    run = Run(tmp_path / "runs" / "a")
    run.mark("cancelled")
    assert handed_over(tmp_path).job_id == "100"
    assert not run.has("cancelled"), "its driver would end at once"


def over(folder: Path) -> Run:
    run = handed_over(folder).run
    (folder / "slurm" / "jobs").write_text("")
    end(run, job="100", code=75)
    return run


def again(folder: Path, nodes: int) -> SubmittedRun:
    cluster = {"check": False, "submit_timeout": 10, "scheduler": "slurm"}
    config = make_config(runs_dir=str(folder / "runs"), run_id="a", cluster=cluster, nodes=nodes)
    return resume(Run(folder / "runs" / "a"), prepare(config, run_id="a"), {}, [])


def test_a_resume_of_another_size_does_not_take_the_job_of_one_whose_answer_was_lost(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(tmp_path)
    with monkeypatch.context() as disk:
        full_for("submitted", disk)
        with pytest.raises(SubmissionError):
            again(tmp_path, nodes=2)
    with pytest.raises(RunError, match=r"is queued: .* cancel a` first"):
        again(tmp_path, nodes=4)
    assert len(stand_in.jobs()) == 1


def test_a_refused_resume_leaves_no_script_with_which_the_run_would_go_on(
    tmp_path: Path, stand_in: SlurmStandIn
) -> None:
    run = over(tmp_path)
    stand_in.set(refusal="nodes=4")
    with pytest.raises(SubmissionError, match="Invalid license"):
        again(tmp_path, nodes=4)
    assert (run.plan().nodes, run.has("script.sh")) == (1, False)


def test_no_command_that_submits_a_chain_to_pbs_gets_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default some sites hand the command's environment on, and everybody can read it."""
    given: list[Mapping[str, str]] = []

    def accepts(_: PBS, script: str, environment: Mapping[str, str], *arguments: str) -> str:
        given.append(environment)
        return f"{len(given)}.server"

    for name, value in (("LAUNCHER_RUNS_DIR", tmp_path / "runs"), ("LAUNCHER_SECRETS_DIR", tmp_path / "secrets")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_TOKEN", "hidden")
    monkeypatch.setattr(PBSScheduler, "problem", lambda _: None)
    monkeypatch.setattr(PBS, "submit", accepts)
    monkeypatch.setattr(PBS, "holds", lambda *_: True)
    assert handed_over(tmp_path, "pbs", resume=CHAIN).job_id == "1.server"
    assert ["HF_TOKEN" in each for each in given] == [False] * 3


def test_a_job_that_another_process_could_not_note_is_found_by_one_that_waited_for_it(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> None:
        with monkeypatch.context() as disk, pytest.raises(SubmissionError):
            full_for("submitted", disk)
            handed_over(tmp_path)

    after(Run, "create", monkeypatch, other)
    assert handed_over(tmp_path).job_id == "100"
    assert len(stand_in.jobs()) == 1


def test_of_two_commands_at_the_same_moment_one_says_what_runs(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(Run, "create", monkeypatch, lambda: handed_over(tmp_path, time="2h"))
    with pytest.raises(ConfigError, match="a is there already with other values of time"):
        handed_over(tmp_path, time="1h")
    assert Run(tmp_path / "runs" / "a").plan().time == 7200
    assert len(stand_in.jobs()) == 1


def test_nothing_is_written_to_a_run_that_others_could_change(tmp_path: Path, stand_in: SlurmStandIn) -> None:
    folder = handed_over(tmp_path).run.path
    (folder / lease_and_locks.SUBMITTING).unlink()
    folder.chmod(0o777)
    with pytest.raises(RunError, match="others can write"):
        handed_over(tmp_path)
    assert not (folder / lease_and_locks.SUBMITTING).exists()


@pytest.mark.parametrize("refused", [False, True])
def test_a_run_whose_first_submitter_was_refused_is_made_by_the_one_that_waited(
    refused: bool, tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other() -> None:
        submission.remove(Run(tmp_path / "runs" / "a"))
        if not refused:  # a third one
            Run.create(tmp_path / "runs" / "a")

    after(lease_and_locks, "_flock", monkeypatch, other)
    assert handed_over(tmp_path).job_id == "100"
    assert [each.name for each in (tmp_path / "runs").iterdir() if each.is_dir() and each.name[:2] == ".a"] == []


@pytest.mark.parametrize("event", ["process", "submitted"])
def test_a_process_of_this_machine_that_cannot_be_noted_is_ended(
    event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_for(event, monkeypatch)
    started: list[Process] = []
    of = Process.of
    monkeypatch.setattr(Process, "of", lambda pid: started.append(of(pid)) or started[-1])
    with pytest.raises(SubmissionError, match=r"nothing was submitted: .*No space left"):
        handed_over(tmp_path, "local")
    assert not (tmp_path / "runs" / "a").exists()
    assert len(started) == 1
    until(lambda: not started[0].alive(), "its process is gone")


def test_a_job_more_than_the_profile_allows_is_refused_and_a_repeated_submission_is_not(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmScheduler, "compare", lambda *_: ())
    monkeypatch.setattr(SlurmScheduler, "count_jobs", lambda *_: {"": 1})

    def submitted(run_id: str, most: int) -> SubmittedRun:
        cluster = {"submit_timeout": 10, "scheduler": "slurm", "limits": Limits(jobs=most)}
        return submit(prepare(make_config(runs_dir=str(tmp_path / "runs"), run_id=run_id, cluster=cluster)), {})

    with pytest.raises(ConfigError, match="takes 1 job of a user, waiting or running, and you have 1"):
        submitted("a", most=1)
    assert (stand_in.calls(), (tmp_path / "runs" / "a").exists()) == (0, False)
    first = submitted("a", most=2)
    assert submitted("a", most=1).job_id == first.job_id  # which is the one that is there
    config = make_config(
        runs_dir=str(tmp_path / "runs"), run_id="a", cluster={"scheduler": "slurm", "limits": Limits(jobs=1)}
    )
    with pytest.raises(ConfigError, match="takes 1 job of a user, waiting or running, and you have 1"):
        prepare(config, run_id="a")  # to resume it takes another job


def test_what_the_user_submits_needs_a_queue_and_shows_no_secret(tmp_path: Path, stand_in: SlurmStandIn) -> None:
    cluster = {"check": False, "environment": {"WANDB_API_KEY": "hidden"}}
    config = make_config(runs_dir=str(tmp_path / "runs"), submit=False, cluster=cluster)
    with pytest.raises(ConfigError, match="WANDB_API_KEY would be readable in the command: export it"):
        prepare(config)
    with pytest.raises(ConfigError, match="submit=false wait=true: there is no job to wait for yet"):
        prepare(make_config(runs_dir=str(tmp_path / "runs"), submit=False, wait=True, cluster={"check": False}))


def test_the_command_for_the_user_makes_the_job_that_a_submission_would(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same script with the same options, and a later submission finds its job."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    config = make_config(runs_dir=str(tmp_path / "runs"), run_id="a", cluster={"check": False, "submit_timeout": 10})
    made = submit(prepare(config), {}, by_hand=True)
    assert (made.job_id, every(journal_events(made.run), Submitting)[-1].token) == ("", made.run.record()["token"])
    assert read_history(made.run).by_hand is not None
    assert "-u OMPI_COMM_WORLD_RANK" in made.command
    assert submit(prepare(config), {}, by_hand=True).command == made.command
    done = subprocess.run(["bash", "-c", made.command], capture_output=True, text=True, check=True)
    assert submit(prepare(config), {}).job_id == done.stdout.strip()


def test_a_submission_says_that_another_run_saves_in_its_folder(
    tmp_path: Path, stand_in: SlurmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(monkeypatch, tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    over = cluster.run("first", "7")
    lease_and_locks.use_folder(tmp_path)

    def notes() -> str:
        keys = {"cluster": {"check": False}, "checkpoint": Checkpoint(dir=str(tmp_path))}
        return "\n".join(prepare(make_config(runs_dir=str(tmp_path / "runs"), run_id="a", **keys)).notes)

    assert f"{over.parent} saves there and keeps this run out until it is over" in notes()
    over.unlink()
    assert "saves there" not in notes()


def test_a_baseline_below_the_home_of_an_unknown_user_is_not_there(tmp_path: Path) -> None:
    config = make_config(workload=P2P("p2p", "workloads.p2p:main"), baseline="~nobodyx/run", runs_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"baseline=~nobodyx/run: .*/~nobodyx/run does not exist"):
        prepare(config)
