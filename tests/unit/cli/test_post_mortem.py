"""What `post-mortem` reads of a run's files, and what it prints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import commands, post_mortem, wait
from launcher.cli.output import cause, outcome
from launcher.diagnose import verdict as diagnosis
from launcher.errors import LauncherError, UnavailableError
from launcher.failures.codes import FaultCode, StopReason
from launcher.fast_dataclasses import replace
from launcher.monitoring import run_status
from launcher.runs import event_files, events
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run
from launcher.runs.output_files import Stream, tail
from launcher.schedulers import registry
from launcher.schedulers.base import JobExecution, JobState
from launcher.schedulers.pbs import client as pbs_history
from launcher.schedulers.slurm import client
from tests.unit.plans import plan_of

TRACE = 'Traceback (most recent call last):\n  File "/home/me/a.py", line 3, in main\n    f()\nValueError: no'


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of four ranks whose scheduler has forgotten it."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus())
    monkeypatch.setattr(diagnosis, "job_executions", lambda *_: [])
    (tmp_path / "runs").mkdir()
    run = Run.create(tmp_path / "runs" / "a")
    run.write_record(plan_of(nodes=2, procs_per_node=2), {}, {"launcher": "1", "token": "t"})
    run.journal(kinds.Submitted(job="7"))
    return run


def attempt(run: Run, number: int = 0, *, ended: int | None = 1, output: int = 0, **fault: Any) -> Attempt:
    """An attempt of it that failed in this way."""
    made = Attempt(run, number)
    (made.path / "events").mkdir(parents=True)
    made.logs.mkdir()
    event_files.append(made.events_file("script"), kinds.Started(job="7", host="node1", output=output))
    if fault:
        values = {"event": "fault", "host": "node2", "ends_with": 1, **fault}
        event_files.append(made.events_file("node-0"), events.from_entry(values))
    if ended is not None:
        event_files.append(made.events_file("script"), kinds.Ended(code=ended))
    return made


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str]:
        try:
            code = commands.main(["post-mortem", *arguments])
        except LauncherError as error:
            return error.exit_code, str(error)
        return code, capsys.readouterr().out

    return run


def verdict(call: Call, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(call("a", "--json", *arguments)[1])["verdict"])


def test_an_error_in_the_code(made: Run, call: Call) -> None:
    logs = attempt(made, rank=3, code="raised", error="ValueError: no", traceback=TRACE).logs
    write(logs / "rank-3.out", "step 1\n\x1b[2Jstep 2\n")
    write(logs / "rank-3.err", f"a warning\n{TRACE}\n")
    write(logs / "rank-0.err", f"{TRACE}\n")
    write(logs / "rank-1.err", f"{TRACE.replace('ValueError: no', 'KeyError: 3')}\n")
    write(logs / "rank-2.err", "lost another rank: Connection closed by peer\n")
    code, shown = call("a")
    assert code == 0
    assert shown.startswith(
        "a: an error in the code\n\ncause      rank 3 on node2: ValueError: no\nkind       exception\n"
    )
    for words in (
        "first      rank 3 on node2 at 20", "others     rank 0 had the same kind of error",
        "others     rank 1 had another error: KeyError", "others     rank 2 only followed",
        "             python -m launcher resume a\n", f"Traceback of rank 3:\n{TRACE}",
        "Last output of rank 3:\n  step 1\n  step 2\n  a warning\n", f"its errors {logs}/rank-3.err",
    ):  # fmt: skip
        assert words in shown
    assert "\x1b" not in shown
    told = verdict(call)
    assert (told["same"], told["others"], told["followed"]) == ([0], {"1": "KeyError: 3"}, [2])


def test_an_error_message_of_several_lines_is_the_same_error_in_other_ranks(made: Run, call: Call) -> None:
    trace = f"{TRACE}:\n  model.weight: other values\nMake equal what should be equal"
    logs = attempt(made, rank=3, code="raised", error="ValueError: no:", traceback=trace).logs
    for rank in (0, 3):
        write(logs / f"rank-{rank}.err", f"{trace}\n")
    told = verdict(call)
    assert (told["same"], told["others"]) == ([0], {})


def test_what_torch_puts_before_the_lines_of_a_traceback_hides_no_error(made: Run, call: Call) -> None:
    logs = attempt(made, rank=3, code="raised", error="ValueError: no", traceback=TRACE).logs
    for rank in (0, 3):
        lines = "".join(f"[rank{rank}]: {line}\n" for line in TRACE.splitlines())
        write(logs / f"rank-{rank}.err", f"a warning\n{lines}")
    told = verdict(call)
    assert (told["same"], told["followed"], told["log"]) == ([0], [], ["a warning"])


def test_ranks_that_end_with_an_error_without_a_traceback_do_not_only_follow(made: Run, call: Call) -> None:
    error = "NoGpuError: gpus_per_node=4 asks for a GPU, and rank {} on node2 sees none"
    logs = attempt(made, rank=3, code="raised", error=error.format(3), traceback=f"a.b.{error.format(3)}\n").logs
    for rank in (0, 3):
        write(logs / f"rank-{rank}.err", f"a warning\na.b.{error.format(rank)}\n")
    write(logs / "rank-1.err", "a.b.BackendError: there is no nccl\n")
    write(logs / "rank-2.err", "a warning: it ends\n")
    told = verdict(call)
    assert (told["same"], told["others"], told["followed"]) == ([0], {"1": "a.b.BackendError: there is no nccl"}, [2])


def test_ranks_of_a_program_that_print_the_same_do_not_only_follow(made: Run, call: Call) -> None:
    logs = attempt(made, rank=1, code="exited", exit_code=3, error="config.yaml lacks a key").logs
    for rank in (0, 1):
        write(logs / f"rank-{rank}.err", "config.yaml lacks a key\n")
    write(logs / "rank-2.err", "")
    told = verdict(call)
    assert (told["same"], told["others"], told["followed"]) == ([0], {}, [2])


def test_the_folder_of_thousands_of_logs_is_listed_a_few_times(
    made: Run, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = attempt(made, rank=3, code="raised", error="ValueError: no", traceback=TRACE).logs
    for rank in range(100):
        write(logs / f"rank-{rank}.err", f"{TRACE}\n")
    listed, glob = [], Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: listed.append(pattern) or glob(path, pattern))
    assert len(verdict(call)["same"]) == 99
    assert len(listed) < 20


def test_a_program_of_its_own_has_its_traceback_in_its_log_only(made: Run, call: Call) -> None:
    logs = attempt(made, rank=1, code="exited", exit_code=1).logs
    write(logs / "rank-1.err", f"a warning\n{TRACE}\n")
    told = verdict(call)
    assert (told["kind"], told["traceback"], told["log"]) == ("exception", TRACE, ["a warning"])
    assert told["cause"] == "rank 1 on node2: exited with code 1: ValueError: no"


def test_a_long_line_of_output_is_cut(made: Run, call: Call) -> None:
    logs = attempt(made, rank=1, code="exited", exit_code=1).logs
    write(logs / "rank-1.err", "x" * 20_000)
    _, shown = call("a")
    assert f"\nLast output of rank 1:\n  {'x' * 497}...\n" in f"{shown}\n"
    assert verdict(call)["log"] == ["x" * 20_000]


def test_all_commands_tell_the_same_line(made: Run, call: Call) -> None:
    attempt(made, rank=1, code="signalled", signal="SIGKILL", memory={"kills": 1})
    line = cause(run_status.status_of(made, run_status.JobMonitor()))
    assert line == verdict(call)["cause"]
    assert line == "rank 1 on node2: killed by SIGKILL; the kernel killed processes for lack of memory in its cgroup"


def test_what_a_rank_has_raised_cannot_reach_the_terminal(made: Run) -> None:
    attempt(
        made,
        rank=1,
        error="ValueError: \x1b]0;title\x07\x1b[31mred\x1b[0m \udc80",
        traceback="a\x1b[2Jb",
    )
    seen = run_status.status_of(made, run_status.JobMonitor())
    assert cause(seen) == "rank 1 on node2: ValueError: red "
    assert outcome(seen).startswith("Traceback of rank 1:\nab\n")
    assert f"more: python -m launcher post-mortem {made.id}" in outcome(seen).splitlines()[-2]
    assert outcome(seen, printed=True) == outcome(seen)  # among the output of several ranks
    alone = replace(seen, plan=replace(seen.plan, nodes=1, procs_per_node=1))
    assert outcome(alone, printed=True).startswith(f"{made.id} failed: rank 1")


@pytest.mark.parametrize("silent", [False, True])
def test_who_has_not_seen_the_end_of_the_output_sees_the_traceback(
    made: Run, silent: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(made, rank=0, error="ValueError: x", traceback="Traceback (most recent call last):\nValueError: x")
    seen = run_status.status_of(made, run_status.JobMonitor())
    alone = replace(seen, plan=replace(seen.plan, nodes=1, procs_per_node=1))

    def new(self: Stream, **_: object) -> list[bytes]:
        if silent:
            raise UnavailableError("it cannot be read now")
        return [b"ValueError: x\n"]

    monkeypatch.setattr(wait, "status_of", lambda *_: alone)
    monkeypatch.setattr(Stream, "new", new)
    wait.follow_to_end(made, foreground=False)
    assert ("Traceback of rank 0:" in capsys.readouterr().err) == silent


def test_a_metric_of_a_megabyte_is_one_short_line(made: Run) -> None:
    attempt(made, ended=0)
    made.write_result({"values": [0.5] * 300_000, "words": "\x1b[2Ja\nb"})
    lines = outcome(run_status.status_of(made, run_status.JobMonitor())).splitlines()
    assert [len(line) <= 220 for line in lines] == [True] * 4
    assert lines[1].startswith("  values  [0.5, 0.5,") and lines[2] == "  words   a b"


def test_advice_names_the_run_and_not_latest_which_moves(
    made: Run, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(made, rank=1, code="signalled", signal="SIGKILL", memory={"kills": 1})
    (made.path.parent / "latest").symlink_to(made.path)
    for default, name in ((made.path.parent, made.id), (made.path.parent.parent, str(made.path))):
        monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(default))
        told = json.loads(call("latest", "--json", "--runs-dir", str(made.path.parent))[1])["verdict"]
        found = [each["command"] for each in told["todo"] if each["command"]]
        assert any(f" {name} " in f"{each} " for each in found), found
        assert "latest" not in " ".join(found)


def test_what_the_scheduler_wrote_belongs_to_the_attempt_that_was_running(made: Run, call: Call) -> None:
    first = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-11-21T21:10:05 DUE TO PREEMPTION ***\n"
    second = "slurmstepd: error: StepId=7.0 exceeded memory limit (900 > 800), being killed\n"
    write(made.path / "output-7.log", first + second)
    attempt(made, 0, ended=143)
    attempt(made, 1, ended=137, output=len(first))
    assert (verdict(call)["kind"], verdict(call)["memory"]) == ("out-of-memory", {"used": 900, "limit": 800})
    told = verdict(call, "--attempt", "0")
    assert told["kind"] == "preempted"
    code, shown = call("a")
    assert code == 0
    assert shown.startswith(
        "attempt 0  preempted: no rank reported a cause (exit code 143); Slurm says\n           PREEMPTED\n"
        "attempt 1  out"
    )


def test_the_job_of_another_attempt_has_an_output_of_its_own(made: Run) -> None:
    write(made.path / "output-7.log", "mine\n")
    write(made.path / "output-17.log", "another's\n")  # which has a 7 as well
    assert diagnosis.output_lines(made, attempt(made)) == ["mine"]


def test_accounting_adds_who_cancelled_and_the_memory(made: Run, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "job_executions", lambda *_: [JobExecution("CANCELLED", by="0", used=5000)])
    attempt(made, ended=143, code="stopped_early")
    told = verdict(call)
    assert (told["kind"], told["cancelled_by"], told["memory"]["used"]) == ("cancelled", "root", 5000)


def test_a_hang_shows_the_stacks_of_its_last_round(made: Run, call: Call) -> None:
    attempt_made = attempt(
        made, rank=1, code="hang", host="node1", accused=[{"host": "node2", "rank": 1}], limit="launch.hang_timeout",
    )  # fmt: skip
    event_files.append(
        attempt_made.events_file("node-0"),
        kinds.Restart(round=1, code=FaultCode.SIGNALLED, rank=0, host="node1", signal="SIGKILL"),
    )
    head = "hread 0x1 (most recent call first):\n"
    stack = f'T{head}  File "/t.py", line 1 in wait\n\nCurrent t{head}'
    for rank in range(4):
        write(attempt_made.logs / f"rank-{rank}.stacks", "of another round")
        where = "load" if rank == 1 else "all_reduce"
        write(attempt_made.logs / f"rank-{rank}.round-1.stacks", f'{stack}  File "/home/me/a.py", line 9 in {where}\n')
    told = verdict(call)
    assert (told["kind"], told["host"]) == ("hang", "node2")
    assert told["stacks"] == [
        {"ranks": [0, 2, 3], "frames": ['File "/home/me/a.py", line 9 in all_reduce']},
        {"ranks": [1], "frames": ['File "/home/me/a.py", line 9 in load']},
    ]
    assert told["restarts"] == ["rank 0 on node1: killed by SIGKILL"]
    shown = call("a")[1]
    assert "Stack of ranks 0,2-3, the newest frame first:" in shown
    assert "before     round 1 began because rank 0 on node1: killed by SIGKILL" in shown


def test_of_many_stacks_and_restarts_some_are_shown_and_the_rest_is_counted(made: Run, call: Call) -> None:
    attempt_made = attempt(made, rank=1, code="hang", accused=[{"host": "node2", "rank": 1}])
    for number in range(15):
        event_files.append(
            attempt_made.events_file("node-0"), kinds.Restart(round=number, code=FaultCode.RAISED, rank=0, host="node1")
        )
    for rank in range(30):
        line = 1 if rank > 24 else rank
        write(attempt_made.logs / f"rank-{rank}.stacks", f'x\n\ny\n  File "/home/me/a.py", line {line} in f\n')
    shown = call("a")[1]
    assert shown.count("Stack of rank") == 20
    assert "... and 5 other stacks" in shown
    assert "before     5 restarts before these" in shown
    assert shown.count(" began because ") == 10
    assert len(verdict(call)["restarts"]) == 15


def test_a_run_that_is_not_over_says_so(made: Run, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.PENDING, "PENDING", "Resources")
    )
    assert call("a") == (1, "a is not over: it is queued (PENDING (Resources))\nsee python -m launcher why a\n")
    attempt(made, ended=75)
    event_files.append(Attempt(made, 0).events_file("stop"), kinds.Stop(reason=StopReason.TIME_LIMIT, step=7))
    code, shown = call("a")
    assert code == 1
    assert shown.startswith("attempt 0  wall-time: its time is nearly up at step 7\n\na is not over")
    assert call("a", "--attempt", "0")[0] == 0
    monkeypatch.setattr(run_status.JobMonitor, "job", lambda *_: run_status.JobStatus(JobState.RUNNING, "RUNNING"))
    assert call("a") == (1, "a is not over: it is running\nsee python -m launcher status a\n")
    assert call("a", "--attempt", "0")[0] == 1


def test_a_run_that_is_done_has_no_cause(made: Run, call: Call) -> None:
    attempt(made, ended=0)
    assert call("a") == (0, "a is done: there is no cause to look for\n")


def test_a_run_that_never_began(made: Run, call: Call) -> None:
    told = verdict(call)
    assert (told["kind"], told["attempt"]) == ("never-started", None)
    code, shown = call("a")
    assert (code, shown.startswith("a: never started\n")) == (0, True)


def test_bad_input(made: Run, call: Call) -> None:
    assert call("b")[0] == 2
    attempt(made)
    assert call("a", "--attempt", "3") == (1, "a has no attempt 3, only 0")
    assert call("a", "--attempt", "x") == (2, "--attempt: 'x' is not a whole number from 0 up; "
                                              "see `python -m launcher post-mortem --help`")  # fmt: skip


def test_half_written_files_do_not_matter(made: Run, call: Call) -> None:
    attempt_made = attempt(made, rank=1, code="signalled", signal="SIGABRT")
    write(attempt_made.logs / "rank-1.err", "terminate called\nstd::bad_alloc")
    (attempt_made.logs / "rank-0.err").symlink_to("/nowhere")
    (attempt_made.logs / "rank-x.err").touch()
    with attempt_made.events_file("node-0").open("a") as file:
        file.write('{"time": 12, "event": "fau')
    assert verdict(call)["kind"] == "out-of-memory"


@pytest.mark.parametrize(
    "name", ["record.json", "journal.jsonl", "attempts/0/events/script.jsonl", "attempts/0/events/node-0.jsonl",
             "attempts/0/logs/rank-1.err", "output-7.log"],
)  # fmt: skip
def test_a_file_that_was_cut_off_anywhere_is_no_reason_to_crash(made: Run, call: Call, name: str) -> None:
    logs = attempt(made, rank=1, code="exited", exit_code=1, memory={"largest": 5}).logs
    write(logs / "rank-1.err", f"a warning\n{TRACE}\n")
    write(made.path / "output-7.log", NOTICES)
    path, whole = made.path / name, (made.path / name).read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 25)):
        path.write_bytes(whole[:end])
        code, shown = call("a")
        assert code == 0 or (code == 1 and "/a" in shown), shown


NOTICES = "slurmstepd: error: StepId=7.0 exceeded memory limit (900 > 800), being killed\n"


def test_the_tail_of_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\r\nbar 1\rbar 2\nthree")
    assert tail(path) == ["one", "two", "bar 2", "three"]
    assert tail(path, 4) == ["two", "bar 2", "three"]
    assert tail(path, 0, 4) == ["one"]
    assert tail(path, most=8) == ["three"]
    assert tail(path, 99) == []
    assert tail(tmp_path / "none") == []


SACCT = """\
12|PREEMPTED|2026-11-21T21:08:34|2026-11-21T21:10:05|
12.batch|CANCELLED|2026-11-21T21:08:34|2026-11-21T21:10:05|3416K
12.0|CANCELLED|2026-11-21T21:08:34|2026-11-21T21:10:05|389.5M
12|CANCELLED by 1000|2026-11-21T21:20:34|2026-11-21T21:21:05|
"""


def test_accountings_answer_is_read() -> None:
    first, second = client.parse_history(SACCT)
    assert first == JobExecution("PREEMPTED", "", "2026-11-21T21:08:34", "2026-11-21T21:10:05", int(389.5 * 1024**2))
    assert (second.raw_state, second.by, second.used) == ("CANCELLED", "1000", None)
    assert client.parse_history("") == []


def test_a_requeued_jobs_attempt_finds_its_own_part_of_accounting(made: Run) -> None:
    pasts = client.parse_history(SACCT)
    begun = time.mktime(time.strptime("2026-11-21T21:08:36", "%Y-%m-%dT%H:%M:%S"))
    first = attempt(made)
    text = first.events_file("script").read_text().splitlines()
    for ahead in (0, 4):  # seconds by which the clock of Slurm's host is ahead of the node's
        started = {**json.loads(text[0]), "time": begun - ahead}
        first.events_file("script").write_text(json.dumps(started) + "\n")
        assert diagnosis.execution_of(pasts, first, last=False) == pasts[0]
    assert diagnosis.execution_of(pasts, first, last=True) == pasts[1]
    assert diagnosis.execution_of([], first, last=True) is None


def test_what_pbs_remembers() -> None:
    record = {
        "comment": "Job run at Sat Nov 21 on (n1) and terminated by ann@login1",
        "resources_used": {"mem": "2048kb"},
    }
    for known, past in ((record, [JobExecution("", by="ann", used=2 << 20)]), ({}, [JobExecution("")]), (None, [])):
        pbs: Any = SimpleNamespace(record=lambda _, known=known: known)
        assert pbs_history.history("7", pbs) == past


@pytest.mark.parametrize(("scheduler", "limit"), [("slurm", 2 << 30), ("pbs", 6 << 30)])
def test_what_a_job_may_take_is_counted_as_what_it_took(scheduler: str, limit: int) -> None:
    """PBS tells the sum of all nodes, Slurm the most of one task."""
    remembers = registry.scheduler(scheduler)
    assert remembers.memory(plan_of(nodes=3, mem="2G")) == limit
    assert remembers.memory(plan_of(nodes=3)) is None


@pytest.mark.parametrize(("accused", "host"), [([{"host": "node3", "rank": 4}, {"host": "n"}], "node3"), ([], "node2")])
def test_the_host_that_is_accused_counts_more_than_who_tells_it(
    made: Run, call: Call, accused: list[dict[str, Any]], host: str
) -> None:
    attempt(made, code="node_silent", accused=accused)
    assert verdict(call)["host"] == host


def test_ranks_of_an_earlier_round_are_not_compared(made: Run, call: Call) -> None:
    """Rank 2 was on a node that was lost: what it wrote before has nothing to do with how the round after ended."""
    logs = attempt(made, rank=1, code="raised", error="ValueError: no", traceback=TRACE).logs
    write(logs / "rank-2.err", TRACE.replace("ValueError: no", "KeyError: 3"))
    for rank in range(2):
        write(logs / f"rank-{rank}.err", "")
        write(logs / f"rank-{rank}.round-1.err", f"{TRACE}\n")
    told = verdict(call)
    assert (told["same"], told["others"], told["followed"], told["unsearched"]) == ([0], {}, [], 0)


def test_ranks_whose_logs_are_not_searched_are_counted(made: Run, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_mortem, "MOST_RANKS", 2)
    logs = attempt(made, rank=0, code="raised", error="ValueError: no", traceback=TRACE).logs
    for rank in range(4):
        write(logs / f"rank-{rank}.err", f"{TRACE}\n")
    told = verdict(call)
    assert (told["same"], told["unsearched"]) == ([1, 2], 1)
    assert "others     the logs of 1 further rank were not searched" in call("a")[1]


def test_what_another_job_has_printed_is_no_evidence(made: Run, call: Call) -> None:
    """On PBS, the output of a job whose node was lost may never arrive."""
    write(made.path / "output-6.log", NOTICES)
    attempt(made, ended=137)
    assert verdict(call)["kind"] == "killed"
    assert diagnosis.output_lines(made, Attempt(made, 0)) == []


def test_commands_name_a_folder_with_blanks_as_one_word(
    made: Run, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attempt(made, rank=1, code="exited", exit_code=3)
    folder = tmp_path / "my runs"
    made.path.parent.rename(folder)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    told = json.loads(call(str(folder / "a"), "--json")[1])["verdict"]
    assert f"python -m launcher resume '{folder}/a'" in [each["command"] for each in told["todo"]]


def test_a_limit_that_this_version_does_not_know_has_no_advice(made: Run, call: Call) -> None:
    attempt(made, rank=1, code="hang", limit="launch.future_timeout")
    assert verdict(call)["kind"] == "hang"
    assert "future_timeout=" not in str(verdict(call)["todo"])
