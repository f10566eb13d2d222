"""The driver of a job: what it does on each exit code, mark and unreadable file. In this process, without a shell."""

from __future__ import annotations

import errno
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import RunError, UnavailableError
from launcher.files import retried_reads
from launcher.files.retried_reads import Ok, Unavailable
from launcher.job import driver
from launcher.job.driver import end_of
from launcher.runs import lease_and_locks
from launcher.runs.directory import Run
from launcher.runs.events import Stop
from launcher.runs.job_file import NAME, LeaseTimes, exports, parse_exports, uptime
from launcher.schedulers.slurm import in_job
from launcher.submission import render
from tests.unit.clock import Clock
from tests.unit.faults import FOR_EVER, FileServer
from tests.unit.sandbox import BEGINS, SUCCEEDS, Outcome, Sandbox

DONE = '{"time": 1.0, "event": "ended", "code": 0}\n'
NUMBERS = pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """What a driver changes in its process is put back."""
    umask, environ = os.umask(0o022), dict(os.environ)
    monkeypatch.setattr(retried_reads, "in_a_job", False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Sandbox(tmp_path)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environ)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FileServer:
    found = FileServer(monkeypatch)
    monkeypatch.setattr(driver, "time", retried_reads.time)
    Clock(monkeypatch, lease_and_locks)
    return found


def drive(
    sandbox: Sandbox, *, code: int = 0, job: str = "7", secrets: Path | None = None, **fields: Any
) -> Outcome:  # fmt: skip
    """Runs a job's driver; its agents end with `code`. secrets: the file that has them."""
    render.write(Run(sandbox.run_dir), sandbox.plan(**fields), token="token")
    if secrets is not None:
        with_secrets(sandbox, secrets)
    os.environ.update(
        PATH=f"{sandbox.folder}/bin:/usr/bin:/bin", SANDBOX=str(sandbox.folder), STAND_IN_EXIT=str(code),
        LAUNCHER_RUN_DIR=str(sandbox.run_dir), LAUNCHER_JOB_ID=job,
    )  # fmt: skip
    return Outcome(sandbox, driver.main([str(sandbox.run_dir / NAME)]), "")


def with_secrets(sandbox: Sandbox, secrets: Path) -> None:
    path = sandbox.run_dir / NAME
    path.write_text(path.read_text().replace('"secrets_file": null', f'"secrets_file": "{secrets}"'))


def ended(outcome: Outcome) -> list[object]:
    return [event["code"] for event in outcome.events() if event["event"] == "ended"]


def race(sandbox: Sandbox, winner: str | None) -> Outcome:
    """A job of a race; winner: the job that has won it before."""
    if winner is not None:
        (sandbox.run_dir / ".race-token").write_text(f"{winner}\n")
    return drive(sandbox, race=({"time": 60}, {"time": 120}))


@pytest.mark.parametrize("winner", [None, "7"])
def test_the_job_that_wins_a_race_or_has_won_it_runs_the_run(sandbox: Sandbox, winner: str | None) -> None:
    outcome = race(sandbox, winner)
    assert (outcome.code, outcome.started) == (0, True)
    assert (sandbox.run_dir / ".race-token").read_text() == "7\n"
    assert outcome.environment["LAUNCHER_MEMBER"] == "0"


def test_a_job_that_has_lost_ends_without_an_attempt_and_waits_for_no_lease(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    (sandbox.run_dir / "lease").write_text("8 0 node\n")  # of a job that is alive
    outcome = race(sandbox, "8")
    assert (outcome.code, outcome.started) == (0, False)
    assert not (sandbox.run_dir / "attempts").exists() or not list((sandbox.run_dir / "attempts").iterdir())
    assert "runs in job 8, which was the first to start: job 7 ends" in capsys.readouterr().err


@NUMBERS
def test_a_job_that_cannot_tell_who_has_won_does_not_begin(sandbox: Sandbox, server: FileServer, number: int) -> None:
    server.fail("run-1/.race-token", number=number)
    outcome = race(sandbox, None)
    server.recover()
    assert (outcome.code, outcome.started) == (75, False)


KILLED, UNREAD = Stop(reason="killed", exit_code=137), Stop(reason="exit_unread")  # type: ignore[arg-type]
HIDDEN = Unavailable("cannot be read", errno.EIO)


@pytest.mark.parametrize(
    ("command", "recorded", "all_nodes", "may_resume", "end"),
    [
        (0, Ok(None), True, False, (75, UNREAD)),  # srun, when Slurm takes a node away
        (0, Ok("0\n"), True, False, (0, None)),
        (0, Ok(""), True, False, (0, None)),  # a full disk
        (1, Ok(None), True, True, (1, None)),  # an agent that could not import torch, say
        (2, Ok(None), True, True, (2, None)),
        (137, Ok(None), True, True, (75, KILLED)),
        (137, Ok(None), True, False, (137, None)),
        (255, Ok(None), True, True, (255, None)),  # no signal
        (137, Ok("0\n"), True, True, (137, None)),  # every node is needed
        (137, Ok("0\n"), False, True, (0, None)),  # a node that came too late has failed, the run has not
        (1, Ok("75\n"), True, False, (75, None)),
        (0, Ok("93\n"), True, False, (93, None)),
        (1, Ok(""), True, False, (1, None)),  # a full disk
        (1, HIDDEN, True, False, (75, UNREAD)),
        (0, HIDDEN, True, False, (0, None)),  # all agents have ended with 0
    ],
)
def test_how_an_attempt_ends(
    command: int,
    recorded: Ok[str | None] | Unavailable,
    all_nodes: bool,
    may_resume: bool,
    end: tuple[int, Stop | None],
) -> None:
    assert end_of(command, recorded, all_nodes=all_nodes, may_resume=lambda: may_resume) == end


@pytest.mark.parametrize("code", [0, 1, 93, 137])
def test_the_job_ends_as_the_agents_end(sandbox: Sandbox, code: int) -> None:
    outcome = drive(sandbox, code=code)
    assert (outcome.code, ended(outcome)) == (code, [code])


# Error numbers 4022 and 1001 (a prolog has failed, no connection); SLURM_EXIT_ERROR (no step, as a task is too large)
@pytest.mark.parametrize("code", [182, 233, 254])
def test_a_run_of_which_slurm_could_not_start_an_agent_goes_on(sandbox: Sandbox, code: int) -> None:
    (sandbox.folder / "bin/srun").write_text(f"#!/bin/bash\nexit {code}\n")
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    outcome = drive(sandbox)
    (stop,) = (event for event in outcome.events() if event["event"] == "stop")
    assert (ended(outcome), stop["reason"], stop["exit_code"]) == ([75], "killed", code)


def test_a_run_whose_agents_are_ended_while_they_start_goes_on_although_what_starts_them_has_told_of_it(
    sandbox: Sandbox,
) -> None:
    """Their starter, on PBS and Grid Engine, writes the stop request to an event file of its own."""
    starter = sandbox.folder / "bin/srun"
    starter.write_text('#!/bin/bash\necho >"$LAUNCHER_RUN_DIR/attempts/0/events/spawn.jsonl"\nkill -KILL $$\n')
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    assert ended(drive(sandbox)) == [75]


@NUMBERS
@pytest.mark.parametrize("mark", ["cancelled", "stop"])
@pytest.mark.parametrize("there", [True, False])
def test_a_mark_that_is_hard_to_read_is_heeded(
    sandbox: Sandbox, server: FileServer, mark: str, there: bool, number: int
) -> None:
    if there:
        (sandbox.run_dir / mark).touch()
    server.fail(f"run-1/{mark}", 2, number)
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started) == ((75, False) if there else (0, True))


@pytest.mark.parametrize("mark", ["cancelled", "stop"])
@pytest.mark.parametrize(("number", "continues"), [(errno.EIO, True), (errno.EACCES, False)])
def test_a_run_of_which_nobody_can_tell_whether_it_was_cancelled_does_not_begin(
    sandbox: Sandbox, server: FileServer, mark: str, number: int, continues: bool
) -> None:
    sandbox.python.write_text('#!/bin/bash\necho >"$SANDBOX/asked"\nexit 75\n')
    server.fail(f"run-1/{mark}", number=number)
    outcome = drive(sandbox)
    server.recover()
    assert (outcome.code, outcome.started, ended(outcome)) == (75, False, [75])
    assert (sandbox.folder / "asked").exists() == continues  # what is refused at once would be so at the next attempt


@pytest.mark.parametrize("mark", ["over", "cancelled"])
def test_the_next_job_of_a_chain_does_not_begin_either(sandbox: Sandbox, server: FileServer, mark: str) -> None:
    server.fail(f"run-1/{mark}")
    outcome = drive(sandbox, resume={"how": "chain"})
    server.recover()
    assert (outcome.code, outcome.started) == (75, False)
    assert not list((sandbox.run_dir / "attempts").iterdir())


@pytest.mark.parametrize(("failed", "code"), [("setup", 93), ("folder", 75), (None, 93)])  # None: a secret is missing
def test_a_chain_ends_with_a_job_that_fails_before_its_agents(
    sandbox: Sandbox, failed: str | None, code: int, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next job would fail as well, and `status` and `wait` have said that the run has failed. No secrets stay."""
    sandbox.python.write_text("#!/bin/bash\nexit 0\n")
    plan = sandbox.plan(
        resume={"how": "chain"}, cluster={"setup": ("false",)}, secret_variables=() if failed else ("GONE",)
    )
    render.write(Run(sandbox.run_dir), plan, token="token")
    with_secrets(sandbox, secrets)
    for name, value in (("RUN_DIR", str(sandbox.run_dir)), ("JOB_ID", "7")):
        monkeypatch.setenv(f"LAUNCHER_{name}", value)
    words = {"setup": ["setup", "1", "1"], "folder": ["folder", str(sandbox.work)], None: []}[failed]
    assert driver.main([str(sandbox.run_dir / NAME), *(["--failed"] if words else []), *words]) == code
    assert (sandbox.run_dir / "over").exists() == (not secrets.exists()) == (code != 75)


@NUMBERS
@pytest.mark.parametrize("part", ["script.jsonl", "run-1/attempts"])
@pytest.mark.parametrize("times", [2, FOR_EVER])
def test_a_run_that_is_done_is_not_done_again(
    sandbox: Sandbox, server: FileServer, part: str, times: int, number: int
) -> None:
    events = sandbox.run_dir / "attempts/0/events"
    events.mkdir(parents=True)
    (events / "script.jsonl").write_text(DONE)
    server.fail(part, times, number)
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started) == (0 if times == 2 else 75, False)


@NUMBERS
@pytest.mark.parametrize(("times", "code"), [(2, 0), (FOR_EVER, 75)])
def test_an_attempt_that_cannot_be_made_now_is_not_given_up(
    sandbox: Sandbox, server: FileServer, times: int, code: int, number: int
) -> None:
    server.fail("attempts/0", times, number)
    assert drive(sandbox).code == code


def test_a_folder_that_cannot_be_written_to_is(
    sandbox: Sandbox, server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fail("attempts/0", FOR_EVER, errno.EROFS)
    assert drive(sandbox).code == 93
    assert "is it on a file system that all nodes share" in capsys.readouterr().err


@NUMBERS
def test_a_lease_that_cannot_be_read_is_not_taken(
    sandbox: Sandbox, server: FileServer, monkeypatch: pytest.MonkeyPatch, number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(lease_and_locks, "TIMEOUT", 0.0)  # one that can be read would be taken at once
    path = sandbox.run_dir / "lease"
    path.write_text("6 3 node1\n")
    server.fail("run-1/lease", FOR_EVER, number)
    outcome = drive(sandbox)
    server.recover()
    assert (outcome.code, outcome.started) == (75, False)
    assert path.read_text() == "6 3 node1\n"
    assert "hard links" not in capsys.readouterr().err


def test_the_time_in_which_a_lease_cannot_be_read_does_not_make_it_dead(sandbox: Sandbox, server: FileServer) -> None:
    holder = lease_and_locks.RunLease(str(sandbox.run_dir), "7", LeaseTimes(15, 1, 30))
    (sandbox.run_dir / "lease").write_text("6 3 node1\n")
    server.fail("run-1/lease", 50)  # 50 s in which it cannot be read; 20 s follow
    waits: list[None] = []

    def waiting() -> None:
        waits.append(None)
        if len(waits) == 60:
            raise UnavailableError("enough")

    with pytest.raises(UnavailableError, match="enough"):
        holder.take(waiting)


def test_no_hard_links_are_said_once_and_the_run_goes_on(
    sandbox: Sandbox, server: FileServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started) == (0, True)
    assert capsys.readouterr().err.count("no hard links in") == 1
    assert Path(outcome.environment["LAUNCHER_LEASE"]).name.startswith(".lease-7-")
    assert not list(sandbox.run_dir.glob("*lease*"))


@pytest.mark.parametrize(
    ("status", "word", "times", "code"),
    [
        (1, "75", 2, 75), (1, "93", 2, 93), (0, "75", 2, 75), (1, "93", FOR_EVER, 75), (0, "0", FOR_EVER, 0),
    ],
)  # fmt: skip
def test_the_exit_code_of_the_agents_is_waited_for(
    sandbox: Sandbox, server: FileServer, status: int, word: str, times: int, code: int
) -> None:
    tell = f'#!/bin/bash\necho {word} >"$LAUNCHER_RUN_DIR/attempts/0/exit_code"\nexit {status}\n'
    (sandbox.folder / "bin/srun").write_text(tell)
    server.fail("/0/exit_code", times)
    outcome = drive(sandbox)
    assert ended(outcome)[0] == code


AWAY = '[ -e "$SANDBOX/away" ] && exit 1'  # what srun does while the controller is away


@pytest.mark.parametrize(("returns", "code"), [(True, 0), (False, 75)])
def test_a_controller_that_is_away_when_the_agents_are_to_start_is_waited_for(
    sandbox: Sandbox, server: FileServer, monkeypatch: pytest.MonkeyPatch, returns: bool, code: int
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (sandbox.folder / "away").touch()
    srun = sandbox.folder / "bin/srun"
    srun.write_text(srun.read_text().replace("#!/bin/bash", f"#!/bin/bash\n{AWAY}", 1))
    asked, is_away = list[bool](), in_job.is_away

    def asks(environ: Mapping[str, str]) -> bool:
        asked.append(is_away(environ))
        if returns and len(asked) == 3:
            (sandbox.folder / "away").unlink()
        return asked[-1]

    monkeypatch.setattr(in_job, "is_away", asks)
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")  # it cannot be requeued now either
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started, ended(outcome)) == (code, returns, [code])
    assert asked[:4] == ([True] * 3 + [False] if returns else [True] * 4)


def test_a_run_that_is_to_stop_while_its_agents_wait_for_the_controller_stops_and_has_not_failed(
    sandbox: Sandbox, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(_: object) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(in_job, "is_away", asks)
    (sandbox.folder / "bin/srun").write_text("#!/bin/bash\nexit 1\n")
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    outcome = drive(sandbox)
    (stop,) = (event for event in outcome.events() if event["event"] == "stop")
    assert (outcome.code, ended(outcome), stop["reason"]) == (75, [75], "signal")


def test_a_controller_that_is_away_when_the_attempt_has_ended_is_waited_for(
    sandbox: Sandbox, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True, True, False]
    monkeypatch.setattr(in_job, "is_away", lambda _: answers.pop(0))
    sandbox.python.write_text('#!/bin/bash\ntouch "$SANDBOX/asked"\n')
    assert drive(sandbox, code=75).code == 75
    assert (sandbox.folder / "asked").exists()
    assert answers == []


def test_agents_that_fail_are_started_once(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    srun = sandbox.folder / "bin/srun"
    begun = '>>"$SANDBOX/started" echo; touch "$LAUNCHER_RUN_DIR/attempts/0/events/node-0.jsonl"'
    srun.write_text(f'#!/bin/bash\n{begun}\ntouch "$SANDBOX/away"\nexit 1\n')
    assert drive(sandbox).code == 1
    assert (sandbox.folder / "started").read_text() == "\n"


def test_a_job_whose_run_directory_is_gone_is_not_started_again_for_its_exit_code(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[object]()
    monkeypatch.setattr(in_job, "end_for_good", asked.append)
    monkeypatch.setattr(driver, "held", removed)
    assert drive(sandbox).code == 93
    assert len(asked) == 1


def removed(*_: object) -> object:
    raise RunError("its run directory is gone")


def test_requeue_may_go_on_in_this_job(sandbox: Sandbox) -> None:
    """The second attempt has the environment of the first, and the lease anew."""
    (sandbox.folder / "bin/srun").write_text(
        '#!/bin/bash\nenv -0 >"$SANDBOX/environment-$LAUNCHER_ATTEMPT"\n'
        f'[ "$LAUNCHER_ATTEMPT" = 1 ] || exit 75\n{SUCCEEDS}\n'
    )
    sandbox.python.write_text("#!/bin/bash\nexit 10\n")  # launcher.job.requeue
    outcome = drive(sandbox, code_root="/code", cluster={"environment": {"GONE": None}})
    assert outcome.code == 0
    assert [outcome.events(number)[-1] for number in (0, 1)] == [
        {"event": "ended", "code": code} for code in (75, 0)
    ]  # fmt: skip
    first, second = (
        (sandbox.folder / f"environment-{number}").read_text().split("\0") for number in (0, 1)
    )  # fmt: skip
    assert {name for name in set(first) ^ set(second) if "DEADLINE" not in name} == {
        "LAUNCHER_ATTEMPT=0", "LAUNCHER_ATTEMPT=1"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "code", "last"), [(0, 75, "ended"), (75, 75, "ended"), (93, 93, "ended"), (1, 75, "stays")]
)
def test_what_requeue_says_is_what_becomes_of_the_job(sandbox: Sandbox, answer: int, code: int, last: str) -> None:
    sandbox.python.write_text(f"#!/bin/bash\nexit {answer}\n")
    outcome = drive(sandbox, code=75)
    assert (outcome.code, outcome.events()[-1]["event"]) == (code, last)
    assert ended(outcome) == ([75, 93] if answer == 93 else [75])


@pytest.mark.parametrize(
    ("code", "mark", "told", "asked"),
    [(0, "", "", 0), (1, "", "", 1), (75, "", "", 1), (0, "stop", "", 1), (1, "", "yes", 0)],
)
def test_slurm_does_not_start_a_job_again_whose_run_has_ended(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: int, mark: str, told: str, asked: int
) -> None:
    """Unless Slurm itself ends the job (told: by SIGTERM): it starts what it preempts again."""
    calls: list[object] = []
    monkeypatch.setattr(in_job, "end_for_good", calls.append)
    monkeypatch.setenv("STAND_IN_TELLS", told)
    if mark:
        (sandbox.run_dir / mark).touch()
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")  # launcher.job.requeue: it stays stopped
    drive(sandbox, code=code)
    assert len(calls) == asked


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text("export A=1\n")
    return path


@pytest.mark.parametrize("code", [75, 1, 0])
@pytest.mark.parametrize("holder", ["7 1 node2\n", "8 1 node2\n", ""])  # none: `resume` has removed the lease
def test_a_job_that_has_lost_the_run_leaves_it_to_the_other_one(
    sandbox: Sandbox, secrets: Path, capsys: pytest.CaptureFixture[str], holder: str, code: int
) -> None:
    (sandbox.folder / "others").write_text(holder)
    replace = 'rm "$LAUNCHER_LEASE"; [ ! -s "$SANDBOX/others" ] || cp "$SANDBOX/others" "$LAUNCHER_LEASE"'
    agents = "\n".join([BEGINS, replace, SUCCEEDS if code == 0 else "", f"exit {code}"])
    (sandbox.folder / "bin/srun").write_text(f"#!/bin/bash\n{agents}\n")
    sandbox.python.write_text('#!/bin/bash\ntouch "$SANDBOX/asked"\n')  # launcher.job.requeue
    outcome, end = drive(sandbox, secrets=secrets, resume={"how": "chain"}), 75 if holder else code
    assert (outcome.code, ended(outcome)) == (end, [end])
    assert not (sandbox.folder / "asked").exists()
    assert not (sandbox.run_dir / "over").exists()
    assert secrets.exists()
    assert "attempt 0 has lost the run" in capsys.readouterr().err
    assert (sandbox.run_dir / "lease").exists() == bool(holder)


@pytest.mark.parametrize("code", [75, 1])
def test_secrets_stay_where_nobody_can_tell_whether_another_job_needs_them(
    sandbox: Sandbox, secrets: Path, server: FileServer, code: int
) -> None:
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    server.fail("run-1/lease")
    assert drive(sandbox, code=code, secrets=secrets).code == code
    server.recover()
    assert secrets.exists()
    (sandbox.run_dir / "lease").unlink()
    assert drive(sandbox, code=code, secrets=secrets).code == code
    assert not secrets.exists()


def test_secrets_stay_for_the_next_job_of_a_chain_which_starts_whatever_is_said(
    sandbox: Sandbox, secrets: Path
) -> None:
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")  # the state of the run could not be read now, say
    chain = {"how": "chain", "max_attempts": 3}
    assert drive(sandbox, code=75, secrets=secrets, resume=chain).code == 75
    assert secrets.exists()
    assert drive(sandbox, code=1, secrets=secrets, resume=chain, job="8").code == 1
    assert not secrets.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_requeue_is_told(sandbox: Sandbox, number: signal.Signals) -> None:
    (sandbox.folder / "bin/srun").write_text(f"#!/bin/bash\nkill -{int(number)} $PPID\nsleep 0.1\nexit 75\n")
    sandbox.python.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >"$SANDBOX/asked"\nexit 75\n')
    assert drive(sandbox).code == 75
    assert (sandbox.folder / "asked").read_text().splitlines()[-2:] == [str(sandbox.run_dir), "stop_requested"]


@pytest.mark.parametrize("early", [False, True])  # before the driver knows the process that it has started
def test_agents_that_do_not_end_before_the_schedulers_sigkill_are_not_waited_for(
    sandbox: Sandbox, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = start(words, **options)
        if early and words[0] == "srun":
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(in_job, "kill_wait", lambda _: 0.2)
    (sandbox.folder / "bin/srun").write_text(f"#!/bin/bash\n{'' if early else 'kill -TERM $PPID'}\nexec sleep 100\n")
    sandbox.python.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >"$SANDBOX/asked"\n')
    outcome = drive(sandbox)
    assert (outcome.code, ended(outcome)) == (75, [75])
    assert (sandbox.folder / "asked").read_text().splitlines()[-1] == "stop_requested"


def test_a_stop_during_set_up_starts_no_agents(sandbox: Sandbox) -> None:
    os.environ["LAUNCHER_STOP"] = "SIGTERM"
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started) == (75, False)
    assert [event["event"] for event in outcome.events()] == ["started", "stop_requested", "stop", "ended"]


@pytest.mark.parametrize(
    ("name", "noted"),
    # Of Grid Engine, before SIGKILL; and of a user's --signal=B:USR1@90, which hurts nobody
    [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGUSR2", "SIGUSR2"), ("SIGUSR1", "")],
)
def test_a_stop_while_the_driver_is_being_loaded_is_noted(
    name: str, noted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "job.json"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LAUNCHER_STOP", "")
    monkeypatch.setattr(driver, "main", lambda _: os.kill(os.getpid(), signal.Signals[name]) or 0)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with pytest.raises(SystemExit):
            runpy.run_path(str(Path(driver.__file__).with_name("__main__.py")))
        assert os.environ["LAUNCHER_STOP"] == noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_each_attempt_in_a_job_has_the_whole_time(sandbox: Sandbox) -> None:
    (sandbox.folder / "bin/srun").write_text(
        '#!/bin/bash\necho "$LAUNCHER_TIME_LEFT" >"$SANDBOX/left-$LAUNCHER_ATTEMPT"\n'
        f'[ "$LAUNCHER_ATTEMPT" = 1 ] || exit 75\n{SUCCEEDS}\n'
    )
    sandbox.python.write_text("#!/bin/bash\nexit 10\n")
    os.environ["LAUNCHER_BEGUN"] = str(uptime() - 1000)
    assert drive(sandbox, time=5000, cluster={"scheduler": "slurm"}).code == 0
    first, second = (int((sandbox.folder / f"left-{number}").read_text()) for number in (0, 1))
    assert 3900 <= first <= 4000 < 4900 <= second


def test_reads_before_the_attempt_are_retried_as_long_as_those_in_it(sandbox: Sandbox, server: FileServer) -> None:
    (sandbox.run_dir / "attempts/0/events").mkdir(parents=True)
    (sandbox.run_dir / "attempts/0/events/script.jsonl").write_text(DONE)
    server.fail("0/events/script.jsonl", 10)  # more than 3 s
    outcome = drive(sandbox)
    assert (outcome.code, outcome.started) == (0, False)
    assert sum(server.slept) > 3


def test_a_file_of_secrets_that_is_damaged_is_one_that_cannot_be_read(
    sandbox: Sandbox, secrets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets.write_text("export A='x")
    (sandbox.run_dir / "environment.sh").write_text("# not here: A\n")
    assert drive(sandbox, secrets=secrets, cluster={"scheduler": "pbs"}).code == 0
    assert f"cannot read {secrets}: without A" in capsys.readouterr().err


def test_a_set_up_line_that_a_stop_has_ended_is_no_failure(sandbox: Sandbox) -> None:
    os.environ["LAUNCHER_STOP"] = "SIGTERM"
    sandbox.python.write_text("#!/bin/bash\nexit 75\n")
    render.write(Run(sandbox.run_dir), sandbox.plan(cluster={"setup": ("sleep 9",)}), token="token")
    os.environ.update(LAUNCHER_RUN_DIR=str(sandbox.run_dir), LAUNCHER_JOB_ID="7")
    assert driver.main([str(sandbox.run_dir / NAME), "--failed", "setup", "1", "143"]) == 75
    assert "setup_failed" not in [event["event"] for event in Outcome(sandbox, 75, "").events()]


@pytest.mark.parametrize("what", ["folder", "environment"])
@pytest.mark.parametrize(
    ("path", "number", "code"),
    [("work/.", None, 75), ("work/.", errno.ESTALE, 75), ("work/.", errno.EACCES, 93), ("gone", None, 93)],
)
def test_what_the_script_did_not_see_may_be_there_at_the_next_attempt(
    sandbox: Sandbox, server: FileServer, what: str, path: str, number: int | None, code: int
) -> None:
    render.write(Run(sandbox.run_dir), sandbox.plan(), token="token")
    os.environ.update(LAUNCHER_RUN_DIR=str(sandbox.run_dir), LAUNCHER_JOB_ID="7")
    if number is not None:
        server.fail(f"/{path}", number=number)
    sandbox.python.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >"$SANDBOX/asked"\nexit 0\n')
    os.environ["SANDBOX"] = str(sandbox.folder)
    assert driver.main([str(sandbox.run_dir / NAME), "--failed", what, f"{sandbox.folder}/{path}"]) == code
    server.recover()
    assert (sandbox.folder / "asked").exists() == (code == 75)  # whether it continues
    assert ended(outcome := Outcome(sandbox, code, "")) == [code]
    assert {event["ends_with"] for event in outcome.events() if event["event"] == "fault"} <= {code}


def test_secrets_are_read_as_they_were_written(sandbox: Sandbox) -> None:
    secrets = {"A": "it's", "B": "two\nlines # no comment", "C": "", "D": "$(x)", "CUDA_VISIBLE_DEVICES": "1"}
    assert parse_exports(f"# {sandbox.folder}/it's\n{exports(secrets)}") == secrets
