"""From the exit of a process to a failure with a code, and from that to the text that a user reads."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from launcher.agent.failures import (
    Failure,
    FailureCode,
    describe,
    failure_of,
    failure_to_end,
    failure_to_start,
    to_blame,
)
from launcher.agent.workers import LeftOver, StartError, WorkerError, WorkerExit

BANANA = WorkerError("raised", "ValueError", "the loss is a banana\nand more", "Traceback ...")
PEER = WorkerError("lost peer", "RuntimeError", "[x] Connection closed by peer", "Traceback ...", lost_peer=True)
FINAL = WorkerError("raised", "WorkloadError", "this will not do", "Traceback ...", final=True)
NO_WORDS = WorkerError("raised", "KeyError", "", "Traceback ...")
SYS_EXIT = WorkerError("sys.exit", "SystemExit", "sys.exit('no data')", "Traceback ...")


@pytest.mark.parametrize(
    ("code", "returned", "error", "returns", "kind"),
    [
        (0, {}, None, True, None),
        (0, None, None, False, None),  # a program reports nothing
        (0, None, BANANA, False, None),
        (0, None, None, True, FailureCode.RETURNED_EARLY),
        (0, None, BANANA, True, FailureCode.RAISED),
        (1, None, BANANA, True, FailureCode.RAISED),
        (1, None, PEER, True, FailureCode.LOST_PEER),
        (1, None, PEER, False, FailureCode.LOST_PEER),
        (-6, None, BANANA, True, FailureCode.RAISED),  # an abort at its end is nothing that counts
        (-9, None, None, True, FailureCode.KILLED),
        (-11, {"loss": 1}, None, True, FailureCode.KILLED),
        (3, None, None, False, FailureCode.EXITED),
        (3, {}, None, True, FailureCode.EXITED),
        (75, None, None, True, FailureCode.LEFT),
        (75, {}, BANANA, True, FailureCode.LEFT),
        (93, None, None, True, FailureCode.NO_RETRY),
        (93, None, BANANA, False, FailureCode.NO_RETRY),
    ],
)
def test_what_an_exit_is(
    code: int, returned: dict[str, object] | None, error: WorkerError | None, returns: bool, kind: FailureCode | None
) -> None:
    failure = failure_of(WorkerExit(0, 5, 77, code, returned, error, 1.5), "node2", returns=returns)
    assert (failure and failure.code) == kind
    if failure is not None:
        assert (failure.rank, failure.host, failure.error, failure.time) == (5, "node2", error, 1.5)
        assert (failure.exit_code, failure.signal) == ((code, None) if code >= 0 else (None, -code))


def failed(kind: FailureCode, rank: int = 1, **fields: object) -> Failure:
    return replace(Failure(kind, rank, "node2"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (failed(FailureCode.RAISED, error=BANANA), "rank 1 on node2: ValueError: the loss is a banana"),
        (failed(FailureCode.RAISED, error=NO_WORDS), "rank 1 on node2: KeyError"),
        (failed(FailureCode.RAISED, error=SYS_EXIT), "rank 1 on node2: sys.exit('no data')"),
        (
            failed(FailureCode.LOST_PEER, error=PEER),
            "rank 1 on node2 lost another rank (RuntimeError: [x] Connection closed by peer)",
        ),
        (failed(FailureCode.KILLED, rank=3, signal=9), "rank 3 on node2: killed by SIGKILL"),
        (failed(FailureCode.KILLED, signal=40), "rank 1 on node2: killed by signal 40"),
        (failed(FailureCode.EXITED, exit_code=3), "rank 1 on node2: exited with code 3"),
        (failed(FailureCode.NO_RETRY, exit_code=93), "rank 1 on node2: exited with code 93"),
        (failed(FailureCode.NO_RETRY, exit_code=93, error=BANANA), "rank 1 on node2: ValueError: the loss is a banana"),
        (failed(FailureCode.RETURNED_EARLY), "rank 1 on node2 exited with code 0 before its work was done"),
        (failed(FailureCode.LEFT, exit_code=75), "rank 1 on node2 left with exit code 75"),
    ],
)
def test_what_a_user_reads(failure: Failure, text: str) -> None:
    assert describe(failure) == text


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, "Resource temporarily unavailable; no more processes are allowed here: raise `ulimit -u` (now"),
        (errno.ENOMEM, "Cannot allocate memory; there is no memory for one more process"),
        (errno.EMFILE, "Too many open files; the agent may open no more files: raise `ulimit -n` (now unlimited)"),
        (errno.ENFILE, "Too many open files in system; the node has no more files to open"),
    ],
)  # fmt: skip
def test_what_is_missing_for_a_rank_and_how_to_get_it(number: int, words: str) -> None:
    error = StartError(3, OSError(number, os.strerror(number)))
    error.processes, error.files = 512, -1
    failure = failure_to_start(error, "node2", 1.5)
    assert failure.code is FailureCode.NOT_STARTED
    assert describe(failure).startswith(f"rank 3 on node2 cannot be started: [Errno {number}] {words}")


def test_a_file_that_cannot_be_written_is_named() -> None:
    error = StartError(3, OSError(errno.ENOSPC, "No space left on device", "/runs/r/attempts/0/logs/rank-3.out"))
    text = describe(failure_to_start(error, "node2", 1.5))
    assert text == (
        "rank 3 on node2 cannot be started: [Errno 28] No space left on device: '/runs/r/attempts/0/logs/rank-3.out'"
    )


def test_a_process_that_is_still_there_is_named() -> None:
    text = describe(failure_to_end([LeftOver(3, 4711, "D"), LeftOver(4, 4712, "R")], "node2", 1.5))
    assert text.startswith(
        "on node2 ranks of the round before were killed and are still there: rank 3 (process 4711, state D: it waits "
        "for a device or a file server); rank 4 (process 4712, state R: it does not end); "
    )


@pytest.mark.parametrize(
    ("failures", "blamed"),
    [
        ([failed(FailureCode.RAISED, 0, time=1.0), failed(FailureCode.KILLED, 1, time=2.0)], 1),
        ([failed(FailureCode.LOST_PEER, 0, time=1.0), failed(FailureCode.RAISED, 1, time=2.0)], 1),
        ([failed(FailureCode.LOST_PEER, 0, time=1.0), failed(FailureCode.LEFT, 1, time=2.0)], 1),
        ([failed(FailureCode.KILLED, 0, time=1.0), failed(FailureCode.NO_RETRY, 1, time=2.0)], 1),
        ([failed(FailureCode.RAISED, 0, time=2.0), failed(FailureCode.EXITED, 1, time=1.0)], 1),
        ([failed(FailureCode.RAISED, 0, time=1.0), failed(FailureCode.RAISED, 1, time=1.0)], 0),
    ],
)
def test_which_of_several_is_to_blame(failures: list[Failure], blamed: int) -> None:
    assert to_blame(failures).rank == blamed


def test_what_would_come_again_is_final() -> None:
    assert failed(FailureCode.RAISED, error=FINAL).final
    assert failed(FailureCode.NO_RETRY).final
    assert not failed(FailureCode.RAISED, error=BANANA).final
    assert failed(FailureCode.RAISED, error=BANANA).traceback == "Traceback ..."
    assert failed(FailureCode.KILLED).traceback == ""
