"""What people read of a fault, stop or continuation whose writer has left its text to the reader."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.failures import messages
from launcher.failures.codes import FaultCode, NextReason, StopReason
from launcher.runs.events import Accused, Continues, Fault, Place, Resized, Stays, Stop

NODE2, NODE3 = Accused(host="node2", node=1), Accused(host="node3", node=2)
RANK1, RANK2 = Accused(host="node1", rank=1), Accused(host="node2", rank=2)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"code": FaultCode.RAISED, "rank": 1, "error": "ValueError: no"}, "rank 1 on node1: ValueError: no"),
        ({"code": FaultCode.LOST_PEER, "rank": 1, "error": "RuntimeError: x"},
         "rank 1 on node1 lost another rank (RuntimeError: x)"),
        ({"code": FaultCode.SIGNALLED, "rank": 3, "signal": "SIGKILL"}, "rank 3 on node1: killed by SIGKILL"),
        ({"code": FaultCode.SIGNALLED, "signal": "SIGKILL", "error": "pbsdsh says 'x'"},
         "the task on node1: killed by SIGKILL: pbsdsh says 'x'"),
        ({"code": FaultCode.EXITED, "rank": 1, "exit_code": 3}, "rank 1 on node1: exited with code 3"),
        ({"code": FaultCode.NO_RETRY, "rank": 1, "exit_code": 93}, "rank 1 on node1: exited with code 93"),
        ({"code": FaultCode.NO_RETRY, "rank": 1, "exit_code": 93, "error": "ValueError: no"},
         "rank 1 on node1: ValueError: no"),
        ({"code": FaultCode.RETURNED_EARLY, "rank": 1}, "rank 1 on node1 exited with code 0 before its work was done"),
        ({"code": FaultCode.LEFT, "rank": 1, "exit_code": 75}, "rank 1 on node1: exited with code 75"),
        ({"code": FaultCode.STILL_THERE, "rank": 1, "error": "rank 1 (process 7, state D)"},
         "on node1 ranks of the round before still exist after SIGKILL: rank 1 (process 7, state D); what they hold "
         "(GPUs, memory, ports) is not free. Look for a file server or a driver that hangs on this node"),
        ({"code": FaultCode.NOT_JOINED, "accused": (RANK1, RANK2), "seconds": 60.0},
         "ranks 1-2 on node1, node2 did not join the others within 60 s: does an import hang?"),
        ({"code": FaultCode.NOT_JOINED, "accused": (Accused(host="", rank=3),), "seconds": 2.5},
         "rank 3 did not join the others within 2.5 s: does an import hang?"),
        ({"code": FaultCode.NODE_ENDED, "accused": (NODE2,)}, "node2 exited without an error report (killed, or lost)"),
        ({"code": FaultCode.NODE_SILENT, "accused": (NODE2, NODE3), "seconds": 12.0},
         "no heartbeat from node2, node3 for 12 s (launch.heartbeat)"),
        ({"code": FaultCode.LEADER_LOST, "accused": (NODE2,), "error": "Connection reset by peer"},
         "the connection to node2 (node 1), which leads, is lost: Connection reset by peer"),
        ({"code": FaultCode.LEADER_LOST, "error": "no answer for 5 s"},
         "the agent on node1 cannot continue: no answer for 5 s"),
        ({"code": FaultCode.AGENT, "error": "[Errno 28] No space left on device"},
         "the agent on node1 cannot continue: [Errno 28] No space left on device"),
        ({"code": FaultCode.TASK_NOT_STARTED, "error": "pbsdsh says 'x'"},
         "the task on node1 could not be started: pbsdsh says 'x'"),
        ({"code": FaultCode.TASK_UNKNOWN, "error": "EIO"}, "it is not known how the task on node1 ended: EIO"),
        ({"code": FaultCode.STOPPED_EARLY, "signal": "SIGTERM"}, "node1 was asked to stop by SIGTERM"),
        ({"code": FaultCode.NOT_REACHED, "accused": (NODE2,), "seconds": 5.0, "error": "node2-ib: no route to host"},
         "node1 could not reach node2 (node 1) within 5 s: node2-ib: no route to host"),
        ({"code": FaultCode.LATE, "node": 0}, "the others have begun without node1 (node 0)"),
        ({"code": FaultCode.NOT_A_MEMBER, "node": 7},
         "agent 7 does not belong to this attempt: was it started by mistake, or twice?"),
        ({"code": FaultCode.REFUSED, "error": "no port is free"}, "node1: no port is free"),
        ({"code": FaultCode.CONDITION_FAILED, "error": "a failed"}, "it was not started: a failed"),
        ({"error": "a code of a newer version"}, "node1: a code of a newer version"),
        ({"host": "", "error": "ValueError: no"}, "ValueError: no"),
        ({"code": FaultCode.TOO_FEW, "message": "all that its writer knew"}, "all that its writer knew"),
        ({"code": FaultCode.RENDEZVOUS_TIMEOUT, "node": 0}, "node1: rendezvous timeout"),
        ({"code": FaultCode.HANG, "rank": 1, "seconds": 30.0}, "rank 1 on node1 hangs for 30 s"),
        ({"code": FaultCode.HANG, "rank": 1, "accused": (RANK1, RANK2), "seconds": 30.0,
          "limit": "launch.hang_timeout"},
         "rank 1 on node1, rank 2 on node2 hangs for 30 s (launch.hang_timeout)"),
    ],
)  # fmt: skip
def test_a_fault(fields: dict[str, Any], shown: str) -> None:
    assert messages.of_fault(Fault(**{"host": "node1", **fields})) == shown


@pytest.mark.parametrize("code", FaultCode)
def test_a_fault_of_which_only_the_code_is_known_has_a_text(code: FaultCode) -> None:
    """Events of damaged files, or of a newer version, may lack any field."""
    assert "None on" not in messages.of_fault(Fault(code=code, host="node1"))


def test_ranks_that_did_not_join_are_one_line_however_many() -> None:
    accused = tuple(Accused(host=f"n{rank // 8}", rank=rank) for rank in range(4096))
    told = messages.of_fault(Fault(code=FaultCode.NOT_JOINED, accused=accused))
    assert told.startswith("ranks 0-4095 on n0, n1, n2") and len(told) < 200


def test_of_many_agents_ten_are_named() -> None:
    accused = tuple(Accused(host=f"n{number}") for number in range(12))
    assert messages.of_fault(Fault(code=FaultCode.NODE_ENDED, accused=accused)).startswith(
        "n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 2 more exited"
    )


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"reason": StopReason.TIME_LIMIT}, "its time is nearly up"),
        ({"reason": StopReason.STOP_FILE}, "asked to stop by its file `stop`"),
        ({"reason": StopReason.SIGNAL, "signal": "SIGTERM"}, "node1 was asked to stop by SIGTERM"),
        ({"reason": StopReason.SIGNAL, "rank": 3}, "asked to stop (rank 3 on node1)"),
        ({"reason": StopReason.WARNING_SIGNAL, "rank": 3}, "the scheduler's warning signal (rank 3 on node1)"),
        ({"reason": StopReason.EXIT_75, "ranks": (3, 2)}, "ranks 2-3 on node1 exited with code 75"),
        ({"reason": StopReason.EXIT_75, "ranks": (3,)}, "rank 3 on node1 exited with code 75"),
        ({"reason": StopReason.NOT_IN_TIME}, "the ranks on node1 did not exit in time"),
        ({"reason": StopReason.KILLED, "exit_code": 137},
         "all agents were killed, or could not be started (exit code 137)"),
        ({"reason": StopReason.CANCELLED}, "it was cancelled before it started"),
        ({"reason": StopReason.EXIT_UNREAD}, "no exit code of its agents can be read"),
        ({"reason": StopReason.UNREADABLE, "error": "EIO"}, "EIO"),
        ({"reason": StopReason.UNREADABLE}, "a file that it needs cannot be read"),
        ({"error": "a reason of a newer version"}, "a reason of a newer version"),
        ({"reason": StopReason.STOP_FILE, "killed_on": "node2", "grace": 30.0},
         "asked to stop by its file `stop`; ranks on node2 did not exit within 30 s and were killed"),
    ],
)  # fmt: skip
def test_a_stop(fields: dict[str, Any], shown: str) -> None:
    assert messages.of_stop(Stop(**{"host": "node1", **fields})) == shown


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (Continues(what="elsewhere", reason=NextReason.RESUBMITTED, job="7"), "job 7 waits for this one to end"),
        (Continues(what="elsewhere", reason=NextReason.REQUEUED, job="7"), "its job was requeued"),
        (Stays(what="stays", reason=NextReason.CANCELLED), "it was cancelled"),
        (Stays(what="stays", reason=NextReason.SCHEDULER_ENDS, scheduler="Slurm", state="COMPLETING"),
         "Slurm ends its job (COMPLETING)"),
        (Stays(what="stays", reason=NextReason.PREEMPTED, scheduler="Slurm", state="COMPLETING"),
         "Slurm has preempted its job, and starts it again unless the site cancels such jobs"),
        (Stays(what="stays", reason=NextReason.NOT_SUBMITTED, error="invalid account"),
         "no job could be submitted to continue it: invalid account"),
        (Stays(what="given_up", reason=NextReason.MAX_ATTEMPTS, attempts=3),
         "it has had 3 attempts (resume.max_attempts)"),
        (Stays(what="given_up", reason=NextReason.NO_PROGRESS, step=10, limit=3600),
         "two attempts in a row got no further than step 10: is time=3600s too short for a start, a step and a save?"),
        (Stays(what="given_up", reason=NextReason.NO_PROGRESS, limit=60, saves_in="/ckpt, out/*"),
         "two attempts in a row reported no step and saved nothing new (/ckpt, out/*): is time=60s too short for a "
         "start and a save, or does it save elsewhere (workload.checkpoint)?"),
    ],
)  # fmt: skip
def test_what_follows(event: Continues | Stays, shown: str) -> None:
    assert messages.of_next(event) == shown


@pytest.mark.parametrize("reason", NextReason)
def test_every_reason_has_a_text_in_either_event(reason: NextReason) -> None:
    assert messages.of_next(Stays(what="stays", reason=reason)) and messages.of_next(
        Continues(what="here", reason=reason)
    )


def test_of_many_nodes_that_were_lost_some_are_named() -> None:
    lost = tuple(Place(host=f"n{number}", node=number) for number in range(64))
    text = messages.of_resized(Resized(round=1, members=64, world_size=512, size=128, without=lost))
    assert text == (
        "round 1 continues without n0 (node 0), "
        + ", ".join(f"n{number} (node {number})" for number in range(1, 10))
        + " and 54 more: 64 of 128"
    )
