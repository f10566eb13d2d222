"""Codes of failures, stops and decisions, for programs. `launcher.failures.messages` makes text of them for people.

The values appear in events and in `--json`. A value that this version does not know is read as `unknown`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from launcher.fast_dataclasses import Open


class Code(str, Enum):
    """Base class of the enums below. Each has the member UNKNOWN, which stands for any string that it does not know."""

    @classmethod
    def _missing_(cls, value: Any) -> Code | None:
        return cls.__members__["UNKNOWN"] if isinstance(value, str) else None


class FaultCode(Code):
    """What ended ranks, or prevented their start."""

    # a rank
    RAISED = "raised"  # an exception, or sys.exit(TEXT)
    LOST_PEER = "lost_peer"  # an exception because another rank had ended
    SIGNALLED = "signalled"  # killed by a signal
    USAGE = "usage"  # it refuses its arguments or its config: a retry would fail too
    EXITED = "exited"  # a non-zero exit code without an exception
    RETURNED_EARLY = "returned_early"  # exit code 0 before its work was done (os._exit(0)), or while others need it
    LEFT = "left"  # exit code 75: it has saved, and the run can be resumed
    NO_RETRY = "no_retry"  # exit code 93: a retry would fail too
    NOT_STARTED = "not_started"  # no process, memory or file descriptor is left, or its log files cannot be written
    STILL_THERE = "still_there"  # its process still exists after SIGKILL
    # all ranks
    HANG = "hang"  # no step and no other progress within a timeout
    NOT_JOINED = "not_joined"  # ranks did not join the process group in time
    # a node
    NODE_ENDED = "node_ended"  # its agent closed the connection without a reason: killed, or lost
    NODE_SILENT = "node_silent"  # no heartbeat
    LEADER_LOST = "leader_lost"  # this agent lost its connection to the leader
    TASK_NOT_STARTED = "task_not_started"  # the scheduler could not start the task
    TASK_UNKNOWN = "task_unknown"  # the exit status of the task cannot be read
    NODE_RETURNED = "node_returned"  # no failure: the ranks restart because a lost node has come back
    STOPPED_EARLY = "stopped_early"  # the agent got a stop request before its ranks could save
    # before the ranks start
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout"  # not all agents arrived in time
    NOT_REACHED = "not_reached"  # this agent could not connect to the leader in time
    TOO_FEW = "too_few"  # fewer agents are left than min_nodes needs
    LATE = "late"  # the other agents have started without this one
    NOT_A_MEMBER = "not_a_member"  # this agent does not belong to the attempt: it was started by mistake, or twice
    REFUSED = "refused"  # rendezvous is impossible: no free port, no such interface
    OPEN_FILES = "open_files"  # the hard limit of open files is too low for these ranks
    PREFLIGHT = "preflight"  # bad nodes
    NO_FOLDER = "no_folder"  # the working folder cannot be entered
    CONTAINER = "container"  # the container does not start
    ARCHIVE = "archive"  # the environment's archive cannot be unpacked
    UNREADABLE = "unreadable"  # the run's record cannot be read
    CONDITION_FAILED = "condition_failed"  # a dependency of the run can no longer be fulfilled
    AGENT = "agent"  # a system error in the agent itself
    UNKNOWN = "unknown"


class StopReason(Code):
    """Why an attempt ended early. The run can be resumed."""

    TIME_LIMIT = "time_limit"  # the time limit is near
    WARNING_SIGNAL = "warning_signal"  # the scheduler sent its warning signal
    STOP_FILE = "stop_file"
    CANCELLED = "cancelled"  # before the attempt began
    SIGNAL = "signal"  # SIGTERM or SIGINT: a preemption, a cancellation, or a user's kill
    EXIT_75 = "exit_75"  # ranks exited with 75 without a stop request
    NOT_IN_TIME = "not_in_time"  # ranks got a stop request and did not exit in time
    KILLED = "killed"  # all agents were killed before one could write a reason
    UNREADABLE = "unreadable"  # a file that the attempt needs cannot be read now
    EXIT_UNREAD = "exit_unread"  # the driver cannot read the exit code of its agents, or they recorded none
    LEASE_LOST = "lease_lost"  # another attempt holds the run's lease, and decides what becomes of the run
    UNKNOWN = "unknown"


class NextReason(Code):
    """Why a run continues, stays stopped or is given up, after an attempt that stopped early: these three groups."""

    # continues
    RESUMABLE = "resumable"
    CHAIN = "chain"  # the next job of its chain is in the queue
    REQUEUED = "requeued"  # the scheduler requeued its job
    RESUBMITTED = "resubmitted"  # the launcher submitted a new job
    # stays stopped
    STOP_FILE = "stop_file"
    CANCELLED = "cancelled"
    RESUME_NEVER = "resume_never"  # resume.how=never
    TIME_LIMIT = "time_limit"  # the allocation that it runs in is nearly over
    STOP_REQUESTED = "stop_requested"  # its job got a stop request
    SCHEDULER_ENDS = "scheduler_ends"  # the scheduler ends its job; the event has the job's state
    PREEMPTED = "preempted"  # the scheduler gives its nodes to another job, and requeues it where the site wants that
    NOT_SUBMITTED = "not_submitted"  # the scheduler refused the new job
    UNREADABLE = "unreadable"  # a file that the decision needs cannot be read now
    LAUNCHER_ERROR = "launcher_error"  # launcher.job.requeue itself failed
    # is given up
    NO_PROGRESS = "no_progress"  # two attempts in a row made no progress
    MAX_ATTEMPTS = "max_attempts"  # it has had resume.max_attempts attempts
    UNKNOWN = "unknown"


class PreflightThen(Code):
    GO = "go"  # all nodes are good
    WITHOUT = "without"  # the attempt continues without the bad nodes
    FAIL = "fail"  # too few nodes are left, or the bad node is not known
    UNKNOWN = "unknown"


class Unbound(Open):
    text: str = ""  # why ranks are not bound, as part of a line


class EndKind(str, Enum):
    """Why an attempt ended. The values appear as `kind` in the output of `post-mortem --json`."""

    DONE = "done"
    OUT_OF_MEMORY = "out-of-memory"
    OUT_OF_GPU_MEMORY = "out-of-gpu-memory"
    SHARED_MEMORY = "shared-memory"
    DISK_FULL = "disk-full"
    LIMIT = "limit"
    WALL_TIME = "wall-time"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    PRUNED = "pruned"
    NODE_LOST = "node-lost"
    BAD_NODE = "bad-node"
    NO_GPU = "no-gpu"
    GPU_ERROR = "gpu-error"
    CONNECTION_LOST = "connection-lost"
    COLLECTIVE_TIMEOUT = "collective-timeout"
    RENDEZVOUS_TIMEOUT = "rendezvous-timeout"
    HANG = "hang"
    KILLED = "killed"
    EXITED = "exited"
    EXITED_EARLY = "exited-early"
    IMPORT_ERROR = "import-error"
    CONFIG_ERROR = "config-error"
    FILE_MISSING = "file-missing"
    DAMAGED_CHECKPOINT = "damaged-checkpoint"
    EXCEPTION = "exception"
    SETUP_FAILED = "setup-failed"
    NO_PROGRESS = "no-progress"
    NEVER_STARTED = "never-started"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        return _LABELS.get(self, self.value.replace("-", " "))


_LABELS = {
    EndKind.OUT_OF_GPU_MEMORY: "out of GPU memory",
    EndKind.SHARED_MEMORY: "shared memory (/dev/shm) is full",
    EndKind.DISK_FULL: "the disk, or a quota, is full",
    EndKind.LIMIT: "a limit of the system (open files, processes)",
    EndKind.WALL_TIME: "out of wall time",
    EndKind.REQUEUED: "its job was requeued",
    EndKind.NO_GPU: "no GPU here",
    EndKind.GPU_ERROR: "GPU error",
    EndKind.HANG: "a rank hangs",
    EndKind.KILLED: "killed by a signal",
    EndKind.EXITED: "exited with an error code",
    EndKind.EXITED_EARLY: "a rank exited with 0 before its work was done",
    EndKind.IMPORT_ERROR: "an import failed",
    EndKind.CONFIG_ERROR: "an argument or a setting cannot be used",
    EndKind.FILE_MISSING: "a file or a data set is missing",
    EndKind.DAMAGED_CHECKPOINT: "a checkpoint is damaged",
    EndKind.EXCEPTION: "an error in the code",
    EndKind.SETUP_FAILED: "a set-up line failed",
    EndKind.LOST: "lost: its job is gone, and nothing says why",
    EndKind.UNKNOWN: "unknown",
}
