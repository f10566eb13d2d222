"""The kinds of ends that `post-mortem` distinguishes, and their names for users. docs/operating.md describes each."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
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
        """The kind in words for users (`out of GPU memory`)."""
        return _LABELS.get(self, self.value.replace("-", " "))


_LABELS = {
    Kind.OUT_OF_GPU_MEMORY: "out of GPU memory",
    Kind.SHARED_MEMORY: "shared memory (/dev/shm) is full",
    Kind.DISK_FULL: "the disk, or a quota, is full",
    Kind.LIMIT: "a limit of the system (open files, processes)",
    Kind.WALL_TIME: "out of wall time",
    Kind.REQUEUED: "its job was requeued",
    Kind.NO_GPU: "no GPU here",
    Kind.GPU_ERROR: "GPU error",
    Kind.HANG: "a rank hangs",
    Kind.KILLED: "killed by a signal",
    Kind.EXITED: "exited with an error code",
    Kind.EXITED_EARLY: "a rank exited with 0 before its work was done",
    Kind.IMPORT_ERROR: "an import failed",
    Kind.CONFIG_ERROR: "an argument or a setting cannot be used",
    Kind.FILE_MISSING: "a file or a data set is missing",
    Kind.DAMAGED_CHECKPOINT: "a checkpoint is damaged",
    Kind.EXCEPTION: "an error in the code",
    Kind.SETUP_FAILED: "a set-up line failed",
    Kind.NO_PROGRESS: "given up: no progress",
    Kind.LOST: "lost: its job is gone, and nothing says why",
    Kind.UNKNOWN: "unknown",
}
