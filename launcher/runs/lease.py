"""The lease of a run keeps two attempts of it from running at the same time.

A job holds the lease RUN/lease if it has made that hard link to a file of its own (atomic on NFS as well). It updates
the file's time as a heartbeat. The content is the job id, then also the attempt and the host.

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
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.errors import RunError, UnavailableError
from launcher.files import locks, run_files, shared_files
from launcher.files.shared_files import Ok, Unavailable, is_transient, read_text, retry_read, unwrap
from launcher.runs.job_file import LeaseTimes

HEARTBEAT = 15.0  # seconds between two heartbeats of the job that holds a lease
POLL = 2.0  # seconds between two checks by a job that waits for a lease
TIMEOUT = 90.0  # seconds without a heartbeat until a lease is taken over; NFS shows times up to 60 s late
LINK_TRIES = 20  # failed tries to make the link, with no lease there, after which there are no hard links
LOCK_TRIES = 300  # tries, 0.1 s apart, after which the lock of a takeover is that of a dead job


class LeaseLost(RunError):
    """This attempt no longer holds the run's lease."""


class LeaseTaken(RunError):
    """Another job that is alive holds the run's lease."""


class Lease:
    """The lease of a run; `path` is its file, or without hard links this job's own file."""

    def __init__(self, run_dir: str, job: str, times: LeaseTimes) -> None:
        self.path = Path(run_dir, "lease")
        self._times = times
        self._mine = Path(run_dir, f".lease-{job.replace('/', '_')}-{os.getpid()}")
        self._job = job
        self._released = threading.Event()

    def take(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Waits until this process holds the lease, and calls `waiting` before each pause.

        Raises LeaseTaken: another job holds it and is alive.
        Raises RunError: the run directory cannot be written.
        """
        self._write(f"{self._job}\n")
        try:
            self._link(waiting)
        except BaseException:
            with contextlib.suppress(OSError):
                self._mine.unlink(missing_ok=True)
            raise
        threading.Thread(target=self._beat, daemon=True).start()

    def record(self, attempt: int) -> None:
        """Writes the attempt and this host into the lease, where `require` looks for them."""
        self._write(f"{self._job} {attempt} {socket.gethostname()}\n")

    def release(self) -> None:
        self._released.set()
        with contextlib.suppress(OSError):
            if self._held():
                self.path.unlink()
        with contextlib.suppress(OSError):
            self._mine.unlink(missing_ok=True)

    def _write(self, text: str) -> None:
        found = retry_read(lambda: self._mine.write_text(text), self._mine, retry_seconds=shared_files.IN_A_JOB)
        if isinstance(found, Unavailable) and not found.is_transient:
            raise RunError(f"{_cannot_write(self._mine.parent)} ({found.reason})")
        if unwrap(found) is None:
            raise RunError(_cannot_write(self._mine.parent))

    def _held(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samefile(self.path, self._mine)
        return False

    def _beat(self) -> None:
        while not self._released.wait(self._times.heartbeat):
            with contextlib.suppress(OSError):
                if self._held():
                    os.utime(self.path)

    def _link(self, waiting: Callable[[], None]) -> None:
        seen: tuple[int, int] | None = None  # inode and time of the lease
        beats = fails = locked = 0
        since = unread = time.monotonic()
        while True:
            failed: OSError | None = None
            try:
                if run_files.link(self._mine, self.path):
                    return
            except OSError as error:
                failed = error
            waiting()
            now: tuple[int, int] | None = None
            if failed is None or not is_transient(failed):
                try:
                    now = self._seen()
                except OSError as error:
                    failed = error
            if failed is not None and is_transient(failed):
                seen, since = None, time.monotonic()
                if since - unread > shared_files.IN_A_JOB:
                    raise UnavailableError(f"{self.path} cannot be read now: {failed.strerror}")
                time.sleep(min(self._times.poll, 1.0))
                continue
            unread = time.monotonic()
            if now is None:  # it was just released, or there are no hard links here
                fails += 1
                if fails > LINK_TRIES:
                    run_dir = self.path.parent
                    print(f"launcher: no hard links in {run_dir}: nothing keeps two attempts apart", file=sys.stderr)
                    self.path = self._mine
                    return
                time.sleep(self._times.poll)
                continue
            fails = 0
            if now != seen:
                beats = beats + 1 if seen is not None and seen[0] == now[0] else 0
                seen, since = now, time.monotonic()
            holder = self._holder()
            if (holder and holder[0] == self._job) or time.monotonic() - since >= self._times.timeout:
                locked = self._take_away(now, locked)
                time.sleep(0.1)
            elif beats >= 3:
                raise LeaseTaken(
                    f"{self.path.parent} runs already, in job {' '.join(holder[:1])} (attempt and host: "
                    f"{' '.join(holder[1:])}): job {self._job} ends"
                )
            else:
                time.sleep(self._times.poll)

    def _seen(self) -> tuple[int, int] | None:
        with contextlib.suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_ino, found.st_mtime_ns
        return None

    def _holder(self) -> list[str]:
        found = read_text(self.path, retry_seconds=0)
        return (found.value or "").split() if isinstance(found, Ok) else []

    def _take_away(self, seen: tuple[int, int], locked: int) -> int:
        # Several jobs may find it dead: one at a time checks it once more, and removes it
        lock = f"{self.path}.lock"
        try:
            os.mkdir(lock)
        except OSError:
            if locked < LOCK_TRIES:
                return locked + 1
        else:
            with contextlib.suppress(OSError):
                if self._seen() == seen:
                    self.path.unlink()
        with contextlib.suppress(OSError):
            os.rmdir(lock)
        return 0


@contextlib.contextmanager
def held(run_dir: str, job: str, times: LeaseTimes, waiting: Callable[[], None] = lambda: None) -> Iterator[Lease]:
    """Holds the lease of a run while the block runs; see `Lease.take`."""
    lease = Lease(run_dir, job, times)
    lease.take(waiting)
    try:
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

    with locks.acquire(folder / SUBMITTING, inheritable=True, waiting=waiting):
        _LOCKED.add(folder)
        try:
            yield
        finally:
            _LOCKED.discard(folder)


def is_being_submitted(folder: Path) -> bool:
    """Returns whether any process holds the submitter's lock of this run or sweep directory."""
    return locks.is_locked(folder / SUBMITTING)
