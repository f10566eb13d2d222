"""From exits of ranks, and a lost leader, to a fault with a code or a stop."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

import pytest

from launcher.agent.attempt import fault_of_start
from launcher.agent.policy import (
    RankFailure,
    RoundEnd,
    exited_to_resume,
    failure_of,
    fault_of_end,
    fault_of_lost_leader,
    stop_of_exits,
    to_blame,
)
from launcher.agent.workers import LeftOver, StartError, WorkerExit
from launcher.failures.codes import FaultCode, StopReason
from launcher.rendezvous.rounds import Member
from launcher.runs.events import Accused, Fault, Stop
from launcher.worker.shared_with_agent import WorkerError

BANANA = WorkerError("raised", "ValueError", "the loss is a banana\nand more", "Traceback ...")
PEER = WorkerError("lost peer", "RuntimeError", "[x] Connection closed by peer", "Traceback ...", lost_peer=True)
FINAL = WorkerError("raised", "WorkloadError", "this will not do", "Traceback ...", final=True)
PRINTED = WorkerError("printed", "", "no such data set", "")
USAGE = WorkerError("usage", "", "train.py: error: unrecognized arguments: --foo", "")
REFUSED = WorkerError("usage", "ConfigCompositionException", "Could not override 'foo'.", "Traceback ...")


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
        (3, None, PRINTED, False, FaultCode.EXITED),
        (2, None, USAGE, False, FaultCode.USAGE),
        (1, None, REFUSED, True, FaultCode.USAGE),
        (75, None, PRINTED, False, FaultCode.LEFT),
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
    assert (failure and failure.fault.code) == kind
    if failure is not None:
        fault = failure.fault
        assert (fault.rank, fault.host, fault.error, failure.time) == (5, "node2", error and error.line, 1.5)
        assert (fault.exception, fault.traceback) == (
            (error and error.type) or None,
            (error and error.traceback) or None,
        )
        assert (failure.kind is RoundEnd.NO_RETRY) == (kind in (FaultCode.NO_RETRY, FaultCode.USAGE))
        assert (fault.exit_code, fault.signal) == ((code, None) if code >= 0 else (None, signal.Signals(-code).name))


def failed(kind: FaultCode, rank: int = 1, **fields: Any) -> RankFailure:
    return RankFailure(Fault(code=kind, rank=rank, host="node2"), **fields)


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EAGAIN, "no more processes are allowed here: raise `ulimit -u` (now 512)"),
        (errno.ENOMEM, "there is no memory for one more process"),
        (errno.EMFILE, "the agent may open no more files: raise `ulimit -n` (now unlimited)"),
        (errno.ENFILE, "the node has no more files to open"),
    ],
)
def test_a_start_that_fails_names_the_error_the_limit_and_the_fix(number: int, fix: str) -> None:
    error = StartError(3, OSError(number, os.strerror(number)))
    error.processes, error.files = 512, -1
    fault = fault_of_start(error, "node2")
    assert (fault.code, fault.rank) == (FaultCode.NOT_STARTED, 3)
    assert fault.error == f"[Errno {number}] {os.strerror(number)}"
    assert fault.message.startswith(f"rank 3 on node2 cannot be started: {fault.error}; {fix}")


def test_a_process_that_still_exists_is_named() -> None:
    fault = fault_of_end([LeftOver(3, 4711, "D"), LeftOver(4, 4712, "R")], "node2")
    assert (fault.code, fault.rank, fault.host) == (FaultCode.STILL_THERE, 3, "node2")
    assert fault.error == (
        "rank 3 (process 4711, state D: it waits for a device or a file server); rank 4 (process 4712, state R: it "
        "does not end)"
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
def test_which_of_several_is_to_blame(failures: list[RankFailure], blamed: int) -> None:
    assert to_blame(failures).rank == blamed


@pytest.mark.parametrize(
    ("code", "error", "final"), [(1, FINAL, True), (93, None, True), (1, BANANA, False), (-9, None, False)]
)
def test_what_would_fail_again_is_final(code: int, error: WorkerError | None, final: bool) -> None:
    failure = failure_of(WorkerExit(0, 5, 77, code, None, error, 1.5), "node2", returns=True)
    assert failure is not None and failure.final is final


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (FaultCode.LOST_PEER, RoundEnd.LOST_PEER),
        (FaultCode.SIGNALLED, RoundEnd.KILLED),
        (FaultCode.NO_RETRY, RoundEnd.NO_RETRY),
        (FaultCode.RAISED, RoundEnd.RAISED),
        (FaultCode.EXITED, RoundEnd.RAISED),
        (FaultCode.RETURNED_EARLY, RoundEnd.RAISED),
    ],
)
def test_the_kind_of_a_failure_for_the_restart_policy(code: FaultCode, kind: RoundEnd) -> None:
    assert failed(code, 0).kind is kind


TRACE = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 5, in main
    raise RuntimeError(f"step {step}")
RuntimeError: step 12
"""


@pytest.mark.parametrize(
    ("code", "values", "place"),
    [
        (
            FaultCode.RAISED, {"exception": "RuntimeError", "error": "RuntimeError: step 12", "traceback": TRACE},
            'RuntimeError\n  File "train.py", line 9\n  File "train.py", line 5',
        ),
        (FaultCode.EXITED, {"error": "error: no such field"}, "error: no such field"),
        (FaultCode.EXITED, {}, ""),
        (FaultCode.SIGNALLED, {"error": "CUDA error"}, ""),
        (FaultCode.LOST_PEER, {"exception": "RuntimeError", "traceback": TRACE}, ""),
    ],
)  # fmt: skip
def test_where_an_error_was_raised(code: FaultCode, values: dict[str, str], place: str) -> None:
    assert RankFailure(Fault(code=code, rank=1, host="node1", **values)).place == place


@pytest.mark.parametrize(
    ("codes", "values", "expected"),
    [
        # ranks that can resume
        (["RAISED"], {"resumable": True}, False),
        (["RAISED", "LEFT"], {"resumable": True}, True),
        (["RAISED"], {"resumable": True, "saving": True}, True),
        (["NO_RETRY"], {"resumable": True, "saving": True}, True),
        (["SIGNALLED"], {"resumable": True, "signalled": True}, True),
        (["SIGNALLED", "NO_RETRY"], {"resumable": True, "signalled": True}, False),
        (["RAISED"], {"resumable": True, "left_first": True}, False),
        # ranks that cannot
        (["LEFT"], {}, True),
        (["LEFT", "LOST_PEER"], {}, True),
        (["LEFT", "RAISED"], {}, False),
        (["SIGNALLED"], {"left_first": True}, True),
        (["SIGNALLED"], {"saving": True, "signalled": True}, False),
    ],
)
def test_which_ranks_have_exited_to_resume_later(codes: list[str], values: dict[str, bool], expected: bool) -> None:
    failures = [failed(FaultCode[code], rank) for rank, code in enumerate(codes)]
    given = {"resumable": False, "left_first": False, "saving": False, "signalled": False, **values}
    assert exited_to_resume(failures, **given) is expected


SCHEDULER = Stop(reason=StopReason.SIGNAL, host="node1", signal="SIGTERM")


@pytest.mark.parametrize(
    ("codes", "asked", "killed_after", "stop"),
    [
        ([75, 0, 75], None, None, Stop(reason=StopReason.EXIT_75, host="node2", ranks=(4, 6))),
        ([0], None, None, Stop(reason=StopReason.NOT_IN_TIME, host="node2")),
        ([75], SCHEDULER, None, Stop(reason=StopReason.SIGNAL, host="node1", signal="SIGTERM", ranks=(4,))),
        (
            [-9], SCHEDULER, 30.0,
            Stop(reason=StopReason.SIGNAL, host="node1", signal="SIGTERM", killed_on="node2", grace=30.0),
        ),
    ],
)  # fmt: skip
def test_why_ranks_have_exited_to_resume_later(
    codes: list[int], asked: Stop | None, killed_after: float | None, stop: Stop
) -> None:
    exits = [WorkerExit(place, 4 + place, 77, code, None, None, 1.5) for place, code in enumerate(codes)]
    assert stop_of_exits(exits, asked, "node2", killed_after=killed_after) == stop


LOST = "node0 exited without an error report (killed, or lost)"


@pytest.mark.parametrize(
    ("stopping", "ended_by", "asked", "values"),
    [
        (False, None, None, {"code": FaultCode.LEADER_LOST, "error": "reset"}),
        (True, None, SCHEDULER, {"code": FaultCode.NODE_ENDED, "error": "reset"}),
        (True, 15, None, {"code": FaultCode.NODE_ENDED, "signal": "SIGTERM", "message": LOST}),
        (
            True, 2, SCHEDULER,
            {"code": FaultCode.NODE_ENDED, "signal": "SIGINT",
             "message": f"{LOST}; then node1 was asked to stop by SIGTERM"},
        ),
    ],
)  # fmt: skip
def test_what_the_loss_of_the_leader_means(
    stopping: bool, ended_by: int | None, asked: Stop | None, values: dict[str, Any]
) -> None:
    fault = fault_of_lost_leader(Member(0, 3, "node0", 2), "reset", stopping=stopping, ended_by=ended_by, asked=asked)
    assert fault == Fault(host="node0", node=3, accused=(Accused(host="node0"),), **values)
