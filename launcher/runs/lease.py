"""The lease of a run keeps two attempts of it from running at the same time.

A job holds RUN/lease (`launcher.files.locks`), and updates the file's time as a heartbeat. The content is the job id,
then also the attempt and the host. Jobs of older versions of the launcher take the same file in the same way.

| the lease | a job that waits for it |
|---|---|
| is of the same job: an earlier start of it | takes it over |
| has had no heartbeat for TIMEOUT seconds | takes it over |
| cannot be read now | waits; this time does not count |
| has had three heartbeats meanwhile | gives up: the run is running |

An attempt may lose the lease without noticing (its node was cut off, say), so code that writes results or checkpoints
calls `require` first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.errors import RunError
from launcher.files import locks, run_files, shared_files
from launcher.files.locks import HolderWatch, Lease, Seen, WithoutLinks, is_dead
from launcher.files.shared_files import Unavailable, read_text, retry_read, unwrap
from launcher.runs.job_file import LeaseTimes

HEARTBEAT = 15.0  # seconds between two heartbeats of the job that holds a lease
POLL = 2.0  # seconds between two checks by a job that waits for a lease
TIMEOUT = 90.0  # seconds without a heartbeat until a lease is taken over; NFS shows times up to 60 s late


class LeaseLost(RunError):
    """This attempt no longer holds the run's lease."""


class LeaseTaken(RunError):
    """Another job that is alive holds the run's lease."""


class RunLease:
    def __init__(self, run_dir: str, job: str, times: LeaseTimes) -> None:
        self._lease = Lease(Path(run_dir, "lease"), Path(run_dir, f".lease-{job.replace('/', '_')}-{os.getpid()}"))
        self._job, self._times = job, times
        self._released = threading.Event()

    @property
    def path(self) -> Path:
        """The lease's file; without hard links this job's own file."""
        return self._lease.path

    def take(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Waits until this process holds the lease, and calls `waiting` before each pause.

        Raises LeaseTaken: another job holds it and is alive.
        Raises RunError, OSError: the run directory cannot be used.
        """
        self._write(f"{self._job}\n")
        try:
            self._lease.take(self._is_dead, waiting, (self._times.poll, self._times.poll))
        except WithoutLinks:
            run_dir = self.path.parent
            print(f"launcher: no hard links in {run_dir}: nothing keeps two attempts apart", file=sys.stderr)
            self._lease.path = self._lease.own
        threading.Thread(target=self._beat, daemon=True).start()

    def record(self, attempt: int) -> None:
        """Writes the attempt and this host into the lease, where `require` looks for them."""
        self._write(f"{self._job} {attempt} {socket.gethostname()}\n")

    def release(self) -> None:
        self._released.set()
        self._lease.release(retry_seconds=0)

    def _write(self, text: str) -> None:
        own = self._lease.own
        found = retry_read(lambda: self._lease.write(text), own, retry_seconds=shared_files.IN_A_JOB)
        if isinstance(found, Unavailable) and not found.is_transient:
            raise RunError(f"{_cannot_write(own.parent)} ({found.reason})")
        if unwrap(found) is None:
            raise RunError(_cannot_write(own.parent))

    def _is_dead(self, seen: Seen, watch: HolderWatch) -> bool:
        job, *attempt = seen.text.split() or [""]
        if is_dead(ours=job == self._job, alive=None, unchanged=watch.unchanged, timeout=self._times.timeout):
            return True
        if watch.beats >= 3:
            raise LeaseTaken(
                f"{self.path.parent} runs already, in job {job} (attempt and host: {' '.join(attempt)}): job "
                f"{self._job} ends"
            )
        return False

    def _beat(self) -> None:
        while not self._released.wait(self._times.heartbeat):
            with contextlib.suppress(OSError):
                os.utime(self._lease.own)  # the lease is a link to it


@contextlib.contextmanager
def held(run_dir: str, job: str, times: LeaseTimes, waiting: Callable[[], None] = lambda: None) -> Iterator[RunLease]:
    """Holds the lease of a run while the block runs; see `RunLease.take`."""
    lease = RunLease(run_dir, job, times)
    try:
        lease.take(waiting)
        yield lease
    finally:
        lease.release()


class RaceLost(RunError):
    """Another job of the race has started before this one."""


def require_not_lost(run_dir: str, race: str, job: str) -> None:
    """Raises RaceLost if another job has won this race (`win`), UnavailableError if that is not known."""
    winner = (unwrap(read_text(Path(run_dir, f".race-{race}"))) or job).strip()
    if winner != job:
        raise RaceLost(f"{run_dir} runs in job {winner}, which was the first to start: job {job} ends")


def win(run_dir: str, race: str, job: str) -> None:
    """Makes a job, which holds the lease, the winner of a race for ever; raises RaceLost or RunError."""
    require_not_lost(run_dir, race, job)
    mark = Path(run_dir, f".race-{race}")
    if unwrap(retry_read(lambda: run_files.write(mark, f"{job}\n"), mark, retry_seconds=shared_files.IN_A_JOB)) is None:
        raise RunError(_cannot_write(mark.parent))


def _cannot_write(folder: Path) -> str:
    return f"{socket.gethostname()} cannot write to {folder}: is it on a file system that all nodes share?"


def require() -> None:
    """Checks that this attempt holds the run's lease. In a process outside of a run it does nothing.

    | the lease | result |
    |---|---|
    | names this job and attempt | returns |
    | names another attempt, is empty, or does not exist | LeaseLost |
    | cannot be read (EIO, ESTALE, ...) | retried for a minute, then UnavailableError |

    Raises LeaseLost: another attempt holds the lease, or none does.
    """
    number, lease = os.environ.get("LAUNCHER_ATTEMPT"), os.environ.get("LAUNCHER_LEASE")
    if not number or lease is None:
        return
    holder = (unwrap(read_text(lease)) or "").split()  # without hard links, LAUNCHER_LEASE is not RUN/lease
    if holder[:2] != [os.environ.get("LAUNCHER_JOB_ID"), number]:
        other = f"attempt {holder[1]} (job {holder[0]})" if len(holder) > 1 else "nobody"
        raise LeaseLost(f"attempt {number} has lost the run, whose lease {other} holds now: it writes nothing more")


# -- The submitter's lock of a run or sweep: only the process that holds it submits the run or sweep


SUBMITTING = ".submitting"  # name of the lock file in the directory of a run or sweep
_LOCKED: set[Path] = set()  # directories of which this process holds the lock


@contextlib.contextmanager
def only_submitter(folder: Path) -> Iterator[None]:
    """Holds the submitter's lock of a run or sweep while the block runs; waits for it first. Reentrant in a process.

    sbatch or qsub inherits the lock (`run_command.run_submission`). So if a submitter is killed, the next one waits
    until sbatch has ended too, and then can tell whether there is a job. On a file system without locks nothing is
    locked; a job that was submitted before is still found by its token.
    """
    if folder in _LOCKED:
        yield
        return

    def waiting() -> None:
        print(f"launcher: waiting for another command that submits in {folder}", file=sys.stderr, flush=True)

    with locks.acquire(folder / SUBMITTING, waiting=waiting):
        _LOCKED.add(folder)
        try:
            yield
        finally:
            _LOCKED.discard(folder)


def is_being_submitted(folder: Path) -> bool:
    return locks.is_locked(folder / SUBMITTING)
