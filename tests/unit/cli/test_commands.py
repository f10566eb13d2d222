"""The sub-commands: what they print, what they exit with, and what they say to words that they do not know."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import commands, status
from launcher.cli.cancel_and_prune import short_job
from launcher.cli.help import ACTIONS, COMMANDS
from launcher.errors import LauncherError
from launcher.failures.codes import StopReason
from launcher.monitoring import run_status
from launcher.monitoring.run_status import RunState
from launcher.paths import PACKAGE
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from launcher.runs.history import journal_events, read_history
from launcher.schedulers.base import JobState
from tests.unit.plans import plan_of
from workloads import image_data


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    error: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command where there are no runs but those in tmp_path/runs; an error is told as __main__ tells it."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))

    def run(*arguments: str) -> Answer:
        try:
            code, problem = commands.main(list(arguments)), ""
        except LauncherError as error:
            code, problem = error.exit_code, str(error)
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err + problem)

    return run


def make(tmp_path: Path, name: str = "a", *, code: int | None = None, ranks: int = 0, fault: str = "") -> Run:
    """A run of one attempt, which has ended with `code`."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    run = Run.create(tmp_path / "runs" / name)
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t"})
    run.journal(kinds.Submitted(job="7"))
    if code is not None or ranks:
        folder = run.path / "attempts" / "0"
        (folder / "events").mkdir(parents=True)
        (folder / "logs").mkdir()
        for rank in range(ranks):
            (folder / "logs" / f"rank-{rank}.out").write_text(f"rank {rank} was here\n")
        if fault:
            event_files.append(folder / "events" / "node-0.jsonl", kinds.Fault(error=fault))
        if code is not None:
            event_files.append(folder / "events" / "script.jsonl", kinds.Ended(code=code))
    return run


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the scheduler says of every job."""

    def says(state: JobState | None, *fields: str) -> None:
        monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(state, *fields))

    return says


# -- help


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), ["data", "fetch"]], ids=" ".join)
def test_help_fits_the_terminal_and_names_the_command(call: Call, words: list[str]) -> None:
    answer = call(*words, "--help")
    assert (answer.code, answer.error) == (0, "")
    assert answer.out.startswith(" ".join(["usage: python -m launcher", *words[:1]]))
    assert all(len(line) <= 80 for line in answer.out.splitlines())


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - {"data"}))  # the only action of `data` is an argument
def test_help_describes_each_action(call: Call, name: str) -> None:
    _, actions = call(name, "--help").out.split("\nactions:\n")
    assert re.findall(r"^  (\w+) +\w+ \w+", actions, re.MULTILINE) == list(ACTIONS[name])


def test_a_command_loads_only_what_it_needs() -> None:
    heavy = ("click", "rich", "asyncio", "inspect", "pathlib", "json", "shutil", "platformdirs", "yaml", "subprocess")
    code = (
        "import sys; from launcher.cli.commands import main; main(['status', '--help'])\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('launcher.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    loaded = ["cli", "cli.commands", "cli.help", "errors", "units"]
    assert done.stderr.splitlines() == ["[]", " ".join(f"launcher.{name}" for name in loaded)]


# -- bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stauts", "there is no command 'stauts'. Did you mean status? Known: run, status, logs, cancel, "),
        ("stauts --help", "there is no command 'stauts'"),
        ("ddp_mnist", "there is no command 'ddp_mnist'. Did you mean workload=ddp_mnist?"),
        ("status --al", "there is no option '--al'. Did you mean --all"),
        ("status --all=3", "--all: ignored explicit argument '3'"),
        ("status --runs-dir", "--runs-dir: expected one argument"),
        ("status --runs-dir ''", "--runs-dir: there is no folder ''"),
        ("prune --older-than 1d --runs-dir /nowhere", "--runs-dir: there is no folder '/nowhere'"),
        ("status -x", "unexpected argument '-x'; see `python -m launcher status --help`"),
        ("logs", "required: RUN"),
        ("checkpoint", "required: ACTION, RUN"),
        ("checkpoint lst", "there is no checkpoint command 'lst'. Did you mean list?"),
        ("data fetc", "there is no data command 'fetc'. Did you mean fetch?"),
        ("logs --folow", "there is no option '--folow'. Did you mean --follow?"),
        ("logs --rnak 3 a", "there is no option '--rnak'. Did you mean --rank?"),
        ("logs a --rank -1", "--rank: '-1' is not a number, or a range of them: write 3 or 0-3,7"),
        ("logs a --rank two", "--rank: 'two' is not a number, or a range of them"),
        ("logs a --rank 3-1", "--rank: 3-1 is an empty range: write 1-3"),
        ("logs a --attempt two", "--attempt: 'two' is not a whole number from 0 up"),
        ("logs a --tail 0", "--tail: '0' is not a whole number from 1 up"),
        ("run", "required: SCRIPT; "),
        ("run nodes=2", "name the script before its KEY=VALUE 'nodes=2'"),
        ("run train.py 0.1", "'0.1' is not KEY=VALUE; arguments of train.py follow `--`"),
        (
            "run train.py --lr 0.1",
            "Arguments of your own program follow `--`: python -m launcher run [-m] SCRIPT",
        ),
        (
            shlex.quote(__file__),
            f"{__file__} is a file, and no command: `python -m launcher run {shlex.quote(__file__)}` runs it",
        ),
        ("cancel", "required: RUN"),
        ("resume", "required: RUN; "),
        ("wait", "required: RUN"),
        ("wait a b", "unexpected argument 'b'"),
        ("data ftech mnist", "there is no data command 'ftech'. Did you mean fetch?"),
        ("data fetch", "fetch needs the NAME of a data set: mnist, fashion-mnist, digits"),
        ("data fetch minst", "there is no data set 'minst'. Did you mean mnist? Known: mnist, fashion-mnist, digits"),
        ("data fetch auto", "there is no data set 'auto'. Known: mnist"),
        ("data fetch --miror x mnist", "there is no option '--miror'. Did you mean --mirror?"),
        ("data --mirror x", "--mirror goes with fetch NAME"),
    ],
)
def test_bad_input_is_told_with_what_was_meant(call: Call, line: str, words: str) -> None:
    answer = call(*shlex.split(line))
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.error
    assert "usage:" not in answer.error


def test_an_error_is_one_line_of_the_whole_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "status", "--al"], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("launcher: there is no option '--al'.") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ["status b", "logs b", "cancel b", "wait b"])
def test_a_run_that_is_not_there_is_bad_input(call: Call, line: str) -> None:
    answer = call(*line.split())
    assert answer.code == 2
    assert "no run 'b' in " in answer.error


# -- status


def test_status_of_no_runs(call: Call, tmp_path: Path) -> None:
    assert call("status").out == f"no runs in {tmp_path / 'runs'}: there is no such folder yet\n"
    (tmp_path / "runs").mkdir()
    assert call("status").out == f"no runs in {tmp_path / 'runs'}\n"
    assert json.loads(call("status", "--json").out) == []
    answer = call("status", "--runs-dir", str(tmp_path / "misspelt"))
    assert f"--runs-dir: there is no folder '{tmp_path / 'misspelt'}'" in answer.error


def test_a_folder_at_which_nobody_may_look_is_not_called_absent(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refused(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if path == "/closed/runs":
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(PermissionError, match="/closed/runs"):
        call("status", "--runs-dir", "/closed/runs")


def test_status_as_json(call: Call, tmp_path: Path) -> None:
    run = make(tmp_path, code=0)
    (row,) = json.loads(call("status", "--json").out)
    assert row == {
        "run": "a", "state": "done", "job": "7", "cluster": "here", "nodes": 1, "spares": 0, "ranks": 1, "attempt": 0,
        "step": None, "steps": None, "percent": None, "rate": None, "needs": None, "elapsed": 0, "left": None,
        "checkpoint": None,
        "checkpoint_age": None, "restored": None,
        "reason": None, "cause": None, "unanswered": None, "answer_age": None, "before": None,
        "kind": None, "code": None, "stop": None, "stays": None, "updated": row["updated"], "directory": str(run.path),
        "breakpoints": [], "metrics": None,
    }  # fmt: skip


def test_a_run_of_a_scheduler_that_is_not_here_is_named_and_hides_no_other(call: Call, tmp_path: Path) -> None:
    make(tmp_path, "mine", code=0)
    theirs = make(tmp_path, "theirs")
    record = theirs.path / "record.json"
    record.write_text(record.read_text().replace('"scheduler": "slurm"', '"scheduler": "lsf"'))
    told = call("status").out
    assert "mine" in told and "done" in told
    assert "theirs" in told and "cluster.scheduler=lsf: there is no such scheduler" in told


def test_attempts_of_several_runs_are_told_apart(call: Call, tmp_path: Path) -> None:
    for name in "ab":
        run = make(tmp_path, name, code=75)
        event_files.append(
            run.attempts()[0].events_file("stop"),
            kinds.Stop(reason=StopReason.SIGNAL, host="n1", signal="SIGTERM", step=7),
        )
        (run.path / "attempts/1/events").mkdir(parents=True)
        event_files.append(run.path / "attempts/1/events/script.jsonl", kinds.Ended(code=0))
        words = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-22T04:27:25 DUE TO PREEMPTION ***"
        (run.path / "output-7.log").write_text(f"{words}\n")
    told = call("status", "a", "b").out
    for name in "ab":
        assert re.search(rf"\n\n{name}:\nATTEMPT .*\n0 .* 75 preempted: n1 was asked to stop by\n +SIGTERM", told), told
    assert "a:\n" not in call("status", "a").out


def test_options_and_runs_come_in_any_order(call: Call, tmp_path: Path) -> None:
    for name in "ab":
        make(tmp_path, name, code=0)
    runs = str(tmp_path / "runs")
    for line in (
        ["a", "--json", "b"],
        ["--json", "--runs-dir", runs, "a", "b"],
        ["a", "b", f"--runs-dir={runs}", "--json"],
    ):
        assert [row["run"] for row in json.loads(call("status", *line).out)] == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "fault", "says", "remark"),
    [
        (0, "", (None,), None),
        (None, "", (JobState.RUNNING, "RUNNING"), None),
        (None, "", (JobState.PENDING, "PENDING", "Resources"), "PENDING (Resources)"),
        (None, "", (JobState.PENDING, ""), None),
        (None, "", (None, "", "", "squeue does not answer"), "squeue does not answer"),
        (1, "rank 0 is out of memory", (JobState.FAILED, "FAILED"), "rank 0 is out of memory"),
        (1, "", (None,), "no rank reported a cause (exit code 1)"),
    ],
)
def test_status_adds_a_line_only_when_it_says_something(
    call: Call, tmp_path: Path, job: Callable[..., None], code: int | None, fault: str, says: Any, remark: str | None
) -> None:
    make(tmp_path, code=code, fault=fault)
    job(*says)
    lines = call("status", "a").out.splitlines()
    silent = len(says) == 4
    incomplete = [f"This is incomplete: slurm does not answer ({remark}).", "1 state is unknown."]
    assert lines[2:] == ([] if remark is None else ["", *(incomplete if silent else [f"a: {remark}"])])
    assert len(call("status").out.splitlines()) == (5 if silent else 2)


@pytest.mark.parametrize(
    ("job_id", "shown"),
    [
        ("7", "7"),
        ("162_0", "162_0"),
        ("136.pbs-srv", "136"),
        ("150.pbs01.cluster.example.org_5", "150_5"),
        ("150[].pbs-srv", "150[]"),
        ("local-launcher-1a2b3c4d5e6f", "1a2b3c4d5e"),
        ("-", "-"),
    ],
)
def test_a_jobs_id_is_shown_as_one_types_it(job_id: str, shown: str) -> None:
    assert short_job(job_id) == shown


# -- logs, cancel


def test_logs_of_one_rank(call: Call, tmp_path: Path) -> None:
    make(tmp_path, code=0, ranks=2)
    assert call("logs", "a", "--rank", "1").out == "rank 1 was here\n"


@pytest.mark.parametrize(
    ("made", "line", "words"),
    [
        ({"ranks": 2}, "--rank 2", "a has no rank 2 in attempt 0: it has 2 ranks"),
        ({"ranks": 2}, "--rank 0 --attempt 3", "a has no attempt 3, only 0"),
        ({}, "--rank 0", "a has not started yet"),
    ],
)
def test_logs_of_a_rank_that_is_not_there(
    call: Call, tmp_path: Path, made: dict[str, Any], line: str, words: str
) -> None:
    make(tmp_path, **made)
    answer = call("logs", "a", *line.split())
    assert (answer.code, answer.error) == (1, words)


def test_what_is_over_cannot_be_cancelled(call: Call, tmp_path: Path) -> None:
    run = make(tmp_path, code=0)
    assert call("cancel", "a") == Answer(0, "a is over already: done\n", "")
    assert "cancelled" not in [event["event"] for event in journal_events(run)]


# -- data


def test_the_list_of_data_sets_has_the_command_that_gets_each(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    answer = call("data", "--data-dir", str(folder))
    lines = {line.split()[0]: line for line in answer.out.splitlines()}
    assert (answer.code, list(lines)) == (0, list(image_data.KNOWN))
    assert lines["mnist"] == (f"mnist           not here; python -m launcher data fetch mnist --data-dir '{folder}'")
    assert lines["digits"].endswith("(part of the launcher)")


def test_a_damaged_data_set_is_a_failure(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    answer = call("data", "--data-dir", str(tmp_path))
    assert answer.code == 1
    assert "is damaged" in answer.out


@pytest.mark.parametrize("line", ["--data-dir {here} fetch mnist", "fetch mnist --data-dir {here}"])
def test_a_download_that_fails_is_a_failure_and_no_bad_input(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(image_data, "PAUSE", 0)
    mirror = f"file://{tmp_path}/nothing"
    answer = call("data", *line.format(here=tmp_path).split(), "--mirror", mirror)
    assert (answer.code, answer.out) == (1, "")
    assert f"could not be fetched ({mirror}: " in answer.error
    assert f"Copy it to {tmp_path}/mnist/" in answer.error


def test_fetch_tells_where_the_data_set_is(call: Call, tmp_path: Path) -> None:
    folder = image_data.find("digits").dir
    assert call("data", "fetch", "digits", "--data-dir", str(tmp_path)).out == f"digits is in {folder}\n"


def test_a_running_job_that_shows_no_sign_of_life_is_told(tmp_path: Path) -> None:
    run = make(tmp_path, ranks=1)
    seen = run_status.RunStatus(run, plan_of(), read_history(run), RunState.RUNNING, None)
    assert status._remark(seen) is None  # nobody holds the lease: it has ended
    lease = run.path / "lease"
    lease.touch()
    assert status._remark(seen) is None
    os.utime(lease, (time.time() - 400,) * 2)
    assert "no heartbeat of its job for 00:06:4" in str(status._remark(seen))
