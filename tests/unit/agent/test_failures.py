"""From the exit of a process to a failure with a code, and from that to the text that a user reads."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from launcher.agent.failures import (
    Failure,
    failure_of,
    failure_to_end,
    failure_to_start,
    to_blame,
)
from launcher.agent.workers import LeftOver, StartError, WorkerError, WorkerExit
from launcher.failures.codes import FaultCode
from launcher.failures.text import of_rank

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
        (0, None, None, True, FaultCode.RETURNED_EARLY),
        (0, None, BANANA, True, FaultCode.RAISED),
        (1, None, BANANA, True, FaultCode.RAISED),
        (1, None, PEER, True, FaultCode.LOST_PEER),
        (1, None, PEER, False, FaultCode.LOST_PEER),
        (-6, None, BANANA, True, FaultCode.RAISED),  # an abort at its end is nothing that counts
        (-9, None, None, True, FaultCode.SIGNALLED),
        (-11, {"loss": 1}, None, True, FaultCode.SIGNALLED),
        (3, None, None, False, FaultCode.EXITED),
        (3, {}, None, True, FaultCode.EXITED),
        (75, None, None, True, FaultCode.LEFT),
        (75, {}, BANANA, True, FaultCode.LEFT),
        (93, None, None, True, FaultCode.NO_RETRY),
        (93, None, BANANA, False, FaultCode.NO_RETRY),
    ],
)
def test_what_an_exit_is(
    code: int, returned: dict[str, object] | None, error: WorkerError | None, returns: bool, kind: FaultCode | None
) -> None:
    failure = failure_of(WorkerExit(0, 5, 77, code, returned, error, 1.5), "node2", returns=returns)
    assert (failure and failure.code) == kind
    if failure is not None:
        assert (failure.rank, failure.host, failure.error, failure.time) == (5, "node2", error, 1.5)
        assert (failure.exit_code, failure.signal) == ((code, None) if code >= 0 else (None, -code))


def failed(kind: FaultCode, rank: int = 1, **fields: object) -> Failure:
    return replace(Failure(kind, rank, "node2"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (failed(FaultCode.RAISED, error=BANANA), "rank 1 on node2: ValueError: the loss is a banana"),
        (failed(FaultCode.RAISED, error=NO_WORDS), "rank 1 on node2: KeyError"),
        (failed(FaultCode.RAISED, error=SYS_EXIT), "rank 1 on node2: sys.exit('no data')"),
        (
            failed(FaultCode.LOST_PEER, error=PEER),
            "rank 1 on node2 lost another rank (RuntimeError: [x] Connection closed by peer)",
        ),
        (failed(FaultCode.SIGNALLED, rank=3, signal=9), "rank 3 on node2: killed by SIGKILL"),
        (failed(FaultCode.SIGNALLED, signal=40), "rank 1 on node2: killed by signal 40"),
        (failed(FaultCode.EXITED, exit_code=3), "rank 1 on node2: exited with code 3"),
        (failed(FaultCode.NO_RETRY, exit_code=93), "rank 1 on node2: exited with code 93"),
        (failed(FaultCode.NO_RETRY, exit_code=93, error=BANANA), "rank 1 on node2: ValueError: the loss is a banana"),
        (failed(FaultCode.RETURNED_EARLY), "rank 1 on node2 exited with code 0 before its work was done"),
        (failed(FaultCode.LEFT, exit_code=75), "rank 1 on node2 left with exit code 75"),
    ],
)
def test_what_a_user_reads(failure: Failure, text: str) -> None:
    assert of_rank(failure) == text


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
    assert failure.code is FaultCode.NOT_STARTED
    assert of_rank(failure).startswith(f"rank 3 on node2 cannot be started: [Errno {number}] {words}")


def test_a_file_that_cannot_be_written_is_named() -> None:
    error = StartError(3, OSError(errno.ENOSPC, "No space left on device", "/runs/r/attempts/0/logs/rank-3.out"))
    text = of_rank(failure_to_start(error, "node2", 1.5))
    assert text == (
        "rank 3 on node2 cannot be started: [Errno 28] No space left on device: '/runs/r/attempts/0/logs/rank-3.out'"
    )


def test_a_process_that_is_still_there_is_named() -> None:
    text = of_rank(failure_to_end([LeftOver(3, 4711, "D"), LeftOver(4, 4712, "R")], "node2", 1.5))
    assert text.startswith(
        "on node2 ranks of the round before were killed and are still there: rank 3 (process 4711, state D: it waits "
        "for a device or a file server); rank 4 (process 4712, state R: it does not end); "
    )


@pytest.mark.parametrize(
    ("failures", "blamed"),
    [
        ([failed(FaultCode.RAISED, 0, time=1.0), failed(FaultCode.SIGNALLED, 1, time=2.0)], 1),
        ([failed(FaultCode.LOST_PEER, 0, time=1.0), failed(FaultCode.RAISED, 1, time=2.0)], 1),
        ([failed(FaultCode.LOST_PEER, 0, time=1.0), failed(FaultCode.LEFT, 1, time=2.0)], 1),
        ([failed(FaultCode.SIGNALLED, 0, time=1.0), failed(FaultCode.NO_RETRY, 1, time=2.0)], 1),
        ([failed(FaultCode.RAISED, 0, time=2.0), failed(FaultCode.EXITED, 1, time=1.0)], 1),
        ([failed(FaultCode.RAISED, 0, time=1.0), failed(FaultCode.RAISED, 1, time=1.0)], 0),
    ],
)
def test_which_of_several_is_to_blame(failures: list[Failure], blamed: int) -> None:
    assert to_blame(failures).rank == blamed


def test_what_would_come_again_is_final() -> None:
    assert failed(FaultCode.RAISED, error=FINAL).final
    assert failed(FaultCode.NO_RETRY).final
    assert not failed(FaultCode.RAISED, error=BANANA).final
    assert failed(FaultCode.RAISED, error=BANANA).traceback == "Traceback ..."
    assert failed(FaultCode.SIGNALLED).traceback == ""
