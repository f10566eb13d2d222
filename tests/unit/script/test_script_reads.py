"""A job's script while the file server does not answer: what it cannot read decides nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from launcher.runs import lease as leases
from launcher.script import render
from tests.unit.sandbox import Outcome, Sandbox, make_faulty

EVER = 10**6
DONE = '{"time": 1.0, "event": "ended", "code": 0}\n'
NUMBERS = pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.setattr(leases, "POLL", 0.05)
    for name, seconds in (("READ_PAUSE", 0.05), ("READ_TIMEOUT", 30)):
        monkeypatch.setattr(render, name, seconds)
    return Sandbox(tmp_path)


def faulty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, program: str, part: str, times: int, number: int) -> None:
    """A program fails; what never passes need not be waited for."""
    if times == EVER:
        monkeypatch.setattr(render, "READ_TIMEOUT", 0)
    make_faulty(sandbox, program, part, times, number)


def ended(outcome: Outcome) -> list[object]:
    return [event["code"] for event in outcome.events() if event["event"] == "ended"]


@NUMBERS
@pytest.mark.parametrize("program", ["stat", "ln"])
def test_a_lease_that_cannot_be_read_is_not_taken(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, program: str, number: int
) -> None:
    monkeypatch.setattr(leases, "TIMEOUT", 0)  # one that can be read would be taken at once
    lease = sandbox.run_dir / "lease"
    lease.write_text("6 3 node1\n")
    faulty(sandbox, monkeypatch, program, "lease", EVER, number)
    outcome = sandbox.execute(sandbox.plan(), job="7")
    assert (outcome.code, outcome.started) == (75, False)
    assert lease.read_text() == "6 3 node1\n"
    assert "hard links" not in outcome.stderr


def test_the_time_in_which_a_lease_cannot_be_read_does_not_make_it_dead(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "TIMEOUT", 2)
    (sandbox.run_dir / "lease").write_text("6 3 node1\n")
    faulty(sandbox, monkeypatch, "stat", "lease", 30, errno.EIO)  # 1.5 s at least; then it is seen, and waited for
    assert sandbox.execute(sandbox.plan(), job="7").code == 0


@NUMBERS
@pytest.mark.parametrize("mark", ["cancelled", "stop"])
@pytest.mark.parametrize("there", [True, False])
def test_a_mark_that_is_hard_to_read_is_heeded(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, mark: str, there: bool, number: int
) -> None:
    if there:
        (sandbox.run_dir / mark).touch()
    faulty(sandbox, monkeypatch, "stat", f"run-1/{mark}", 2, number)
    outcome = sandbox.execute(sandbox.plan())
    assert (outcome.code, outcome.started) == ((75, False) if there else (0, True))


@pytest.mark.parametrize("mark", ["cancelled", "stop"])
def test_a_run_of_which_nobody_can_tell_whether_it_was_cancelled_does_not_begin(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    faulty(sandbox, monkeypatch, "stat", f"run-1/{mark}", EVER, errno.EIO)
    outcome = sandbox.execute(sandbox.plan())
    assert (outcome.code, outcome.started, ended(outcome)) == (75, False, [75])


@pytest.mark.parametrize("mark", ["over", "cancelled"])
def test_the_next_job_of_a_chain_does_not_begin_either(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    faulty(sandbox, monkeypatch, "stat", f"run-1/{mark}", EVER, errno.EIO)
    outcome = sandbox.execute(sandbox.plan(resume={"how": "chain"}))
    assert (outcome.code, outcome.started) == (75, False)
    assert not list((sandbox.run_dir / "attempts").iterdir())


@NUMBERS
@pytest.mark.parametrize(("program", "part"), [("grep", "script.jsonl"), ("ls", "attempts")])
@pytest.mark.parametrize("times", [2, EVER])
def test_a_run_that_is_done_is_not_done_again(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, program: str, part: str, times: int, number: int
) -> None:
    events = sandbox.run_dir / "attempts/0/events"
    events.mkdir(parents=True)
    (events / "script.jsonl").write_text(DONE)
    faulty(sandbox, monkeypatch, program, part, times, number)
    outcome = sandbox.execute(sandbox.plan())
    assert (outcome.code, outcome.started) == (0 if times == 2 else 75, False)


@NUMBERS
@pytest.mark.parametrize(("times", "code"), [(2, 0), (EVER, 75)])
def test_an_attempt_that_cannot_be_made_now_is_not_given_up(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, times: int, code: int, number: int
) -> None:
    faulty(sandbox, monkeypatch, "mkdir", "attempts/0", times, number)
    assert sandbox.execute(sandbox.plan()).code == code


def test_a_folder_that_cannot_be_written_to_is(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(sandbox, monkeypatch, "mkdir", "attempts/0", EVER, errno.EROFS)
    outcome = sandbox.execute(sandbox.plan())
    assert outcome.code == 93
    assert "is it on a file system that all nodes share" in outcome.stderr


@pytest.mark.parametrize(
    ("status", "word", "times", "code"),
    [
        (1, "75", 2, 75), (1, "93", 2, 93), (0, "75", 2, 75),
        (1, "93", EVER, 75),  # nobody can tell: it stays stopped
        (0, "0", EVER, 0),  # all agents have ended with 0
        (137, None, 0, 137), (1, None, 0, 1),
    ],
)  # fmt: skip
def test_the_exit_code_of_the_agents_is_waited_for(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, status: int, word: str | None, times: int, code: int
) -> None:
    tell = "" if word is None else f'echo {word} >"$LAUNCHER_RUN_DIR/attempts/0/exit_code"'
    faulty(sandbox, monkeypatch, "cat", "exit_code", times, errno.EIO)
    outcome = sandbox.execute(sandbox.plan(cluster={"setup": (tell,) if tell else ()}), code=status)
    assert ended(outcome)[0] == code
