"""What a rank leaves of its end, and what its agent makes of whatever it finds."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import io_bounds
from launcher.failures import known_errors
from launcher.worker import shared_with_agent, user_script
from launcher.worker.shared_with_agent import (
    LONGEST_LINE,
    WorkerError,
    last_words,
    read_last_words,
    read_report,
    run_and_report,
)


@pytest.fixture
def report() -> Iterator[int]:
    descriptor = os.memfd_create("report")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(user_script.time, "sleep", found.append)
    return found


def lost() -> None:
    raise type("DistNetworkError", (RuntimeError,), {"__module__": "torch.distributed"})("gone")


def refused() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


NCCL = (
    "[rank1]:[E1201 00:00:01.5 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
    "watchdog thread terminated with exception: {0}\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: {0}\n"
    "Exception raised from checkForNCCLErrorsInternal at ProcessGroupNCCL.cpp:2363 (most recent call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in /lib/libc10.so)\n\n"
    'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "train.py", line 3 in main\n'
)
GONE = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call "
    "failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
)
LATE = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE) ran for 1800 milliseconds"


@pytest.mark.parametrize(("error", "code", "lost"), [(GONE, -6, True), (LATE, -6, False), (GONE, 1, False)])
def test_a_rank_that_nccls_watchdog_aborts_because_another_is_gone_has_lost_a_peer(
    error: str, code: int, lost: bool
) -> None:
    """Where a node loses its power this comes long before its heartbeat is missed: this rank is not to blame."""
    found = last_words(NCCL.format(error), code)
    assert (found is not None and found.lost_peer) is lost
    if lost:
        assert found is not None
        assert (found.code, found.type) == ("lost peer", "DistBackendError")
        assert "NCCL error: remote process exited" in found.line and "frame" not in found.line
    assert last_words("terminate called after throwing an instance of 'std::bad_alloc'\n what(): no", -6) is None


def test_only_one_that_lost_a_peer_waits_for_the_other_to_be_heard(
    report: int, slept: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for call, waits in ((refused, []), (lost, [shared_with_agent.SYMPTOM_DELAY])):
        assert run_and_report(call, report) == 1
        error = read_report(report)[1]
        assert error is not None
        assert slept == waits
        assert error.lost_peer is bool(waits)
        assert error.traceback == capsys.readouterr().err  # of both: a traceback is always shown
        assert error.traceback.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'"returned"', b'{"returned": 3}', b'{"returned": {"a": ', b'{"error": "words"}',
        b"\xff\xfe", pickle.dumps({"returned": {}}),
    ],
)  # fmt: skip
def test_what_is_no_report_is_none(report: int, data: bytes) -> None:
    os.pwrite(report, data, 0)
    assert read_report(report) == (None, None)


def test_an_error_with_parts_missing_is_still_an_error(report: int) -> None:
    os.pwrite(report, b'{"error": {"type": 3, "message": null, "final": "yes"}}', 0)
    assert read_report(report)[1] == WorkerError("", "3", "None", "")


def test_metrics_are_told_in_jsons_types(report: int) -> None:
    assert run_and_report(lambda: {"loss": 0.5, "at": os, 3: [1, (2,)]}, report) == 0
    returned = read_report(report)[0]
    assert returned == {"loss": 0.5, "at": str(os), "3": [1, [2]]}


def test_a_rank_that_returns_much_has_done_its_work(report: int) -> None:
    numbers = [0.1 + index for index in range(100_000)]
    assert run_and_report(lambda: {"numbers": numbers}, report) == 0
    assert read_report(report) == ({"numbers": numbers}, None)


def test_a_rank_that_returns_more_than_a_result_holds_has_done_its_work(
    report: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_bounds, "RESULT_BYTES", 1 << 12)
    assert run_and_report(lambda: {"weights": "x" * (1 << 12), "loss": 1}, report) == 0
    assert read_report(report) == ({"loss": 1}, None)


def test_the_largest_report_is_read(report: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics that fill a result, and an error of the longest texts, every character of which is escaped."""
    monkeypatch.setattr(io_bounds, "RESULT_BYTES", 1 << 12)
    monkeypatch.setattr(io_bounds, "REPORT_BYTES", io_bounds.RESULT_BYTES + (1 << 10))
    text = "x" * (io_bounds.RESULT_BYTES - len('{\n "a": "",\n \n}'))
    assert run_and_report(lambda: {"a": text}, report) == 0
    assert read_report(report)[0] == {"a": text}
    assert io_bounds.RESULT_BYTES < os.fstat(report).st_size < io_bounds.REPORT_BYTES
    monkeypatch.undo()
    longest = user_script.LONGEST_MESSAGE + user_script.LONGEST_TRACEBACK
    assert len(json.dumps("\U0001f600" * longest)) + (1 << 12) < io_bounds.REPORT_BYTES


def test_one_rank_of_a_node_reports_metrics(report: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert run_and_report(lambda: {"loss": 1}, report) == 0
    assert read_report(report) == ({}, None)


def test_a_process_that_a_rank_forks_reports_nothing_for_it(report: int, capfd: pytest.CaptureFixture[str]) -> None:
    def forks() -> dict[str, Any]:
        if (pid := os.fork()) == 0:
            raise ValueError("of the child")  # which comes back to where the rank itself was started
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {"child": code, "silent": read_report(report) == (None, None)}

    me = os.getpid()
    code = run_and_report(forks, report)
    if os.getpid() != me:
        os._exit(code)
    assert read_report(report)[0] == {"child": 1, "silent": True}


def test_what_torch_records_of_an_error_becomes_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.error.json"
    told = {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback ..."}}
    path.write_text(json.dumps({"message": told}))
    path.chmod(0o644)
    found = shared_with_agent.read_error_file(path)
    assert found is not None
    assert found.line == "ValueError: x"
    assert path.stat().st_mode & 0o777 == 0o600


ARGPARSE = (
    "usage: train.py [-h] [--lr LR]\n                [--epochs N]\ntrain.py: error: unrecognized arguments: --foo\n"
)
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --foo\n"
TYPER = "\x1b[1mUsage: \x1b[0mtrain.py\n╭─ Error ──────────╮\n│ No such option: --foo   │\n╰──────────────────╯\n"
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: no\n\nSet HYDRA_FULL_ERROR=1 for more.\n"


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        (ARGPARSE, 2, ("usage", "train.py: error: unrecognized arguments: --foo")),
        (ARGPARSE, 3, ("printed", "train.py: error: unrecognized arguments: --foo")),
        (CLICK, 2, ("usage", "Error: No such option: --foo")),
        (TYPER, 2, ("usage", "No such option: --foo")),
        ("ls: cannot access 'x'\n", 2, ("printed", "ls: cannot access 'x'")),
        (TRACEBACK, 1, ("printed", "ValueError: no")),
        (re.sub(r"^(?=.)", "[rank3]: ", TRACEBACK, flags=re.MULTILINE), 1, ("printed", "ValueError: no")),  # torch's
        (TRACEBACK + "\n" * 3 + "fine\n" * known_errors.LOG_LINES, 1, ("printed", "fine")),  # it was handled
        (" 10%|#   |\r 20%|##  |", 1, ("printed", "20%|##  |")),
        *(("x" * (LONGEST_LINE + more), 1, ("printed", "x" * (LONGEST_LINE + min(more, 0)))) for more in (-1, 0, 1)),
        ("\n \n", 1, None),
    ],
)  # fmt: skip
def test_the_last_words_of_a_program_are_its_error(text: str, code: int, error: tuple[str, str] | None) -> None:
    found = last_words(text, code)
    assert (found and (found.code, found.line)) == error


@pytest.mark.parametrize("more", [-1, 0])
def test_the_end_of_what_was_printed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(io_bounds, "LAST_WORDS_BYTES", len(ARGPARSE) + more)
    (tmp_path / "err").write_text(ARGPARSE)
    found = read_last_words(tmp_path / "err", 2)
    assert found is not None
    assert (found.code, found.line) == ("printed" if more < 0 else "usage", ARGPARSE.splitlines()[-1])
    assert read_last_words(tmp_path / "none", 2) is None


def test_the_line_of_an_error_of_nccl_has_its_cause() -> None:
    text = "NCCL error in: Utils.cpp:94, unhandled system error\nncclSystemError: x\nLast error:\nno space on /dev/shm"
    error = WorkerError("raised", "DistBackendError", text, "")
    assert error.line == "DistBackendError: NCCL error in: Utils.cpp:94, unhandled system error: no space on /dev/shm"
