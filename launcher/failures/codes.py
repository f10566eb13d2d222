"""What happened, as codes: programs read these, and people the text that `launcher.failures.text` makes of them.

The values are what events and `--json` say. One that is not known here, of a newer version, is `unknown`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Code(str, Enum):
    """A closed list of codes, each with the member UNKNOWN."""

    @classmethod
    def _missing_(cls, value: Any) -> Code | None:
        return cls.__members__["UNKNOWN"] if isinstance(value, str) else None


class FaultCode(Code):
    """What ended ranks, or kept them from starting."""

    # a rank
    RAISED = "raised"  # an exception, or sys.exit with words
    LOST_PEER = "lost_peer"  # an exception, because another rank was gone
    SIGNALLED = "signalled"  # killed by a signal
    EXITED = "exited"  # with an exit code of its own, without a word
    RETURNED_EARLY = "returned_early"  # exit code 0 before its work was done (os._exit(0))
    LEFT = "left"  # exit code 75: it has saved, and can be resumed
    NO_RETRY = "no_retry"  # exit code 93
    NOT_STARTED = "not_started"  # the kernel had no process, memory or descriptor, or its files cannot be written
    STILL_THERE = "still_there"  # it was killed, and its process is not gone
    # ranks together
    HANG = "hang"  # without a step, or any sign of life, for too long
    NOT_JOINED = "not_joined"  # ranks did not come to the process group in time
    # a node
    NODE_ENDED = "node_ended"  # its agent ended without a word: killed, or lost
    NODE_SILENT = "node_silent"  # no heartbeat
    LEADER_LOST = "leader_lost"  # this agent lost contact with the one that leads
    TASK_NOT_STARTED = "task_not_started"  # the scheduler could not start it
    TASK_UNKNOWN = "task_unknown"  # whether and how it ended cannot be read
    NODE_RETURNED = "node_returned"  # nothing failed: ranks start again with a node that came back
    STOPPED_EARLY = "stopped_early"  # it was asked to stop, before its ranks could resume
    # before there were ranks
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout"  # not all agents came in time
    REFUSED = "refused"  # the rendezvous cannot be: no port is free, no such interface
    PREFLIGHT = "preflight"  # bad nodes
    NO_FOLDER = "no_folder"  # the working folder cannot be entered
    CONTAINER = "container"  # it does not start
    ARCHIVE = "archive"  # it cannot be unpacked
    UNREADABLE = "unreadable"  # the run's record
    CONDITION_FAILED = "condition_failed"  # what the run waits for will not come about
    AGENT = "agent"  # an agent cannot go on: an error of the system
    UNKNOWN = "unknown"


class StopReason(Code):
    """Why an attempt ends early, and can be resumed."""

    TIME_LIMIT = "time_limit"  # nearly reached
    WARNING_SIGNAL = "warning_signal"  # of the scheduler
    STOP_FILE = "stop_file"
    CANCELLED = "cancelled"  # before it began
    SIGNAL = "signal"  # SIGTERM or SIGINT: of a preemption, a cancellation, or anybody
    EXIT_75 = "exit_75"  # ranks left with it by themselves
    NOT_IN_TIME = "not_in_time"  # ranks were asked to leave, and did not
    KILLED = "killed"  # all agents were, before one could say why
    NODE_RETURNED = "node_returned"  # of a round: it begins anew with a node that came back
    UNREADABLE = "unreadable"  # what it needs cannot be read now
    EXIT_UNREAD = "exit_unread"  # the script cannot read with what its agents ended
    UNKNOWN = "unknown"


class NextReason(Code):
    """Why a run goes on after an attempt that stopped early, stays stopped, or is given up."""

    # goes on
    RESUMABLE = "resumable"
    CHAIN = "chain"  # the next job of its chain waits
    REQUEUED = "requeued"  # its job
    RESUBMITTED = "resubmitted"  # as a new job
    # stays
    STOP_FILE = "stop_file"
    CANCELLED = "cancelled"
    RESUME_NEVER = "resume_never"
    TIME_LIMIT = "time_limit"  # of the allocation that it runs in
    STOP_REQUESTED = "stop_requested"  # its job was asked to end
    SCHEDULER_ENDS = "scheduler_ends"  # its job, in a state that is given
    NOT_SUBMITTED = "not_submitted"  # the scheduler did not take it again
    UNREADABLE = "unreadable"  # what this is decided by
    LAUNCHER_ERROR = "launcher_error"  # what decides this has failed itself
    # is given up
    NO_PROGRESS = "no_progress"  # two attempts in a row
    MAX_ATTEMPTS = "max_attempts"
    UNKNOWN = "unknown"


class PreflightThen(Code):
    """What is done after a preflight."""

    GO = "go"  # all nodes are fine
    WITHOUT = "without"  # the others go on
    FAIL = "fail"  # too few are left, or nobody knows which node it is
    UNKNOWN = "unknown"


class SetupPart(Code):
    """What a set-up line is for."""

    CLUSTER = "cluster"  # of cluster.setup
    ENV = "env"  # of env.setup
    MODULE = "module"  # finds the command `module`
    MODULES = "modules"  # loads one of env.modules
    ACTIVATE = "activate"  # env.activate
    FOLDER = "folder"  # makes a folder that env.container shows
    UNKNOWN = "unknown"
