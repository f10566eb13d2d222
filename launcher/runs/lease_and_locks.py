"""What keeps processes apart: locks of the kernel, leases, those of runs and of their folders, locks of submitters.

`flock` is missing on some shared file systems, and others silently restrict it to one node, so only commands use it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from launcher.errors import RunError, UnavailableError, is_transient
from launcher.fast_dataclasses import Struct
from launcher.files import retried_reads, safe_io
from launcher.files.retried_reads import Ok, Unavailable, Wrong, read_text, retry_read, unwrap
from launcher.processes import Process, namespace
from launcher.runs.job_file import LeaseTimes

# -- Locks of the kernel (flock)
#
# No lock is taken with lockf, because flock does not see such locks, except over NFS. The kernel releases a lock when
# its file is closed, also when the process is killed. A child that inherits the file keeps the lock.
#
# | the file | `acquire` | `try_acquire` | `is_locked` |
# |---|---|---|---|
# | is not locked | locks it | locks it, yields True | False |
# | is locked by another process | waits | yields False | True |
# | is on a file system without locks (ENOLCK, ENOTSUP, ...) | runs the block | yields True | False |
# | cannot be locked now (EIO, ESTALE, ...) | retries, then UnavailableError | same | same |


WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_LOCKED = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def acquire(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock of a file, made if missing, in the block, and in programs that it starts; waits for it first.

    Raises FileNotFoundError: the file's folder is gone, maybe since this process waits.
    """
    while True:
        with _open(path) as file:
            os.set_inheritable(file.fileno(), True)
            if not _flock(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if waiting is not None:
                    waiting()
                _flock(file, path, fcntl.LOCK_EX)
            if _is_at(path, file):  # else it was removed while this process waited, and another one is locked there
                yield
                return


@contextlib.contextmanager
def try_acquire(path: Path) -> Iterator[bool]:
    """Yields True, and holds the lock of a file (made if missing) in the block; False: another process has it."""
    with _open(path) as file:
        yield _flock(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of this file. The check itself takes a shared lock for a moment."""
    with _open(path) as file:
        return not _flock(file, path, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _open(path: Path) -> IO[str]:
    descriptor = unwrap(retry_read(lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600), path))
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return open(descriptor, "r+")


def _is_at(path: Path, file: IO[str]) -> bool:
    return bool(unwrap(retry_read(lambda: os.path.samestat(os.fstat(file.fileno()), os.stat(path)), path)))


def _flock(file: IO[str], path: Path, how: int) -> bool:
    # On a file system without locks it returns True
    def take() -> bool:
        try:
            fcntl.flock(file, how)
        except OSError as error:
            if error.errno in _LOCKED:
                return False
            if error.errno not in WITHOUT_LOCKS:
                raise
        return True

    return bool(unwrap(retry_read(take, path)))


# -- A lease: a file that one process at a time can make, on any shared file system; and when its holder counts as dead
#
# A process holds a lease once it has made that hard link to a file of its own: link(2) is atomic, on NFS as well. But
# the kernel does not remove this file when its holder is killed, so each waiting process decides whether the holder is
# dead: `is_dead`. Times are measured with the waiting process's monotonic clock, so clocks of nodes need not agree.
#
# A holder that was cut off for longer than the timeout may return and still believe that it holds the lease. So what it
# writes is checked: by `require`, and for the journal of a search in `launcher.search.search`.


def is_dead(*, ours: bool, alive: bool | None, unchanged: float, timeout: float) -> bool:
    """Returns whether the holder of a lease, or of a point of a sweep, is dead. The first row that applies decides.

    | the holder | dead |
    |---|---|
    | is an earlier start of this job, or this process, which failed to release the lease | yes |
    | is a process of this machine that has ended | yes |
    | is a process of this machine that exists, even if it is suspended | no |
    | is another one, and has shown no change for `timeout` seconds | yes |
    | is another one | no |

    alive: whether the holder is a process that runs; None: it is on another machine, or names no process.
    """
    if ours or alive is not None:
        return ours or not alive
    return unchanged >= timeout


class HolderWatch:
    """For how long a holder has shown no change, as far as this process has seen."""

    def __init__(self) -> None:
        self.unchanged = 0.0  # seconds
        self.beats = 0  # changes of the same holder that were seen
        self._holder: object = None
        self._sign: object = None
        self._since = 0.0

    def look(self, holder: object, sign: object, now: float) -> None:
        """Records what is seen of a holder at `now`, a time of the monotonic clock before it was looked at."""
        if holder != self._holder:
            self.beats, self._since = 0, now
        elif sign != self._sign:
            self.beats, self._since = self.beats + 1, now
        self._holder, self._sign = holder, sign
        self.unchanged = now - self._since

    def forget(self) -> None:
        """Starts anew, because the holder could not be looked at: it is not known whether it has changed."""
        self.unchanged, self.beats, self._holder = 0.0, 0, None


class Seen(Struct):
    text: str
    inode: int
    changed: int  # mtime in nanoseconds


def look(path: Path) -> Seen | None:
    """Returns what the file of a lease is now; None: there is none. OSError as `safe_io.open_regular`."""
    with contextlib.suppress(FileNotFoundError), safe_io.open_regular(path) as file:
        status = os.fstat(file.fileno())
        return Seen(os.fsdecode(file.read(4096)), status.st_ino, status.st_mtime_ns)
    return None


def remove(path: Path, is_it: Callable[[Path], bool]) -> None:
    """Removes a file if it is still the one of which `is_it` returns True. Raises OSError, UnavailableError.

    Another process may take the lease between any two lines. So the file is renamed first, and looked at then: that of
    another holder, or one that cannot be read now, is put back.
    """
    if not is_it(path):
        return
    aside = path.with_name(safe_io.temporary_name(path.name))
    with contextlib.suppress(FileNotFoundError):  # NFS may have lost the reply to a rename that was made
        path.rename(aside)
    if retry_read(lambda: is_it(aside), aside) != Ok(True):
        unwrap(retry_read(lambda: safe_io.link(aside, path), aside))
    aside.unlink(missing_ok=True)


class WithoutLinks(OSError):
    """The file system has no hard links."""


class Lease:
    """The lease `path`, as the process with the file `own`, in the same folder, takes it."""

    def __init__(self, path: Path, own: Path) -> None:
        self.path, self.own = path, own
        self._written: tuple[int, str] | None = None  # inode and content of `own`

    def write(self, text: str) -> Path:
        """Makes or changes this process's own file, so what others read in a lease that it holds; returns its path."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self.own, flags, 0o600), "wb") as file:
            file.write(os.fsencode(text))
            self._written = os.fstat(file.fileno()).st_ino, text
        return self.own

    def take(
        self, dead: Callable[[Seen, HolderWatch], bool], waiting: Callable[[], None], pauses: tuple[float, float]
    ) -> None:
        """Waits until this process, whose own file exists, holds the lease.

        dead: returns whether the holder is dead, of which this was seen; it may end the wait with an error.
        waiting: is called before each pause. pauses: the first and the longest one, in seconds.
        Raises WithoutLinks; UnavailableError: the lease could not be read for a minute; OSError.
        """
        watch, pause, answered = HolderWatch(), pauses[0], time.monotonic()
        while True:
            now = time.monotonic()
            try:
                if self._link():
                    return
                if (seen := look(self.path)) is not None:
                    watch.look((seen.inode, seen.text), seen.changed, now)
                    if dead(seen, watch):
                        remove(self.path, lambda path: look(path) == seen)
                        continue
                answered = now
            except OSError as error:
                if not is_transient(error):
                    raise
                if now - answered >= retried_reads.IN_A_JOB:
                    raise UnavailableError(f"{self.path} cannot be read now: {error.strerror}") from None
                watch.forget()
            waiting()
            time.sleep(pause)
            pause = min(2 * pause, pauses[1])

    def release(self, retry_seconds: float | None = None) -> None:
        """Removes the lease, if this process holds it, and its own file; for `retry_seconds` see `retry_read`.

        A lease that cannot be removed now is left to those who find its holder dead.
        """
        if self.path != self.own:
            with contextlib.suppress(UnavailableError):
                retry_read(lambda: remove(self.path, self._is_own), self.path, retry_seconds=retry_seconds)
        with contextlib.suppress(OSError):
            self.own.unlink(missing_ok=True)

    def _is_own(self, path: Path) -> bool:
        seen = look(path)
        return seen is not None and (seen.inode, seen.text) == self._written

    def _link(self) -> bool:
        try:
            return safe_io.link(self.own, self.path)
        except OSError as error:
            if error.errno in safe_io.WITHOUT_LINKS:
                raise WithoutLinks(error.errno, error.strerror, str(self.path)) from None
            raise


# -- The lease of a run keeps two attempts of it from running at the same time
#
# A job holds RUN/lease, and updates the file's time as a heartbeat. The content is the job id, then also the attempt
# and the host.
#
# | the lease | a job that waits for it |
# |---|---|
# | is of the same job: an earlier start of it | takes it over |
# | has had no heartbeat for TIMEOUT seconds | takes it over |
# | cannot be read now | waits; this time does not count |
# | has had three heartbeats meanwhile | gives up: the run is running |
#
# An attempt may lose the lease without noticing (its node was cut off, say), so code that writes results or checkpoints
# or continues the run calls `require` first. The leading agent asks `lost` now and then, and ends the ranks.


HEARTBEAT = 15.0  # seconds between two heartbeats of the job that holds a lease
POLL = 2.0  # seconds between two checks by a job that waits for a lease
TIMEOUT = 90.0  # seconds without a heartbeat until a lease is taken over; NFS shows times up to 60 s late
SILENCE = 300.0  # the same, as commands measure it: the clocks of their machine and the file server may differ


class LeaseLost(RunError):
    """This attempt no longer holds the run's lease."""

    taken = False  # whether another attempt was seen to hold it


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
            print(f"launcher: no hard links in {self.path.parent}: nothing keeps two attempts apart", file=sys.stderr)
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
        found = retry_read(lambda: self._lease.write(text), own, retry_seconds=retried_reads.IN_A_JOB)
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
    if unwrap(retry_read(lambda: safe_io.write(mark, f"{job}\n"), mark, retry_seconds=retried_reads.IN_A_JOB)) is None:
        raise RunError(_cannot_write(mark.parent))


def _cannot_write(folder: Path) -> str:
    return f"{socket.gethostname()} cannot write to {folder}: is it on a file system that all nodes share?"


def require(*, retry_seconds: float | None = None) -> None:
    """Checks that this attempt holds the run's lease. In a process outside of a run it does nothing.

    | the lease | result |
    |---|---|
    | names this job and attempt | returns |
    | names another job or attempt, is empty, or does not exist | LeaseLost |
    | cannot be read (EIO, ESTALE, ...) | retried (for a minute in a job; see `retry_read`), then UnavailableError |

    Raises LeaseLost: another attempt holds the lease, or none does.
    """
    number, lease = os.environ.get("LAUNCHER_ATTEMPT"), os.environ.get("LAUNCHER_LEASE")
    if not number or lease is None:
        return
    # Without hard links, LAUNCHER_LEASE is not RUN/lease
    holder = (unwrap(read_text(lease, retry_seconds=retry_seconds)) or "").split()
    if holder[:2] != [os.environ.get("LAUNCHER_JOB_ID"), number]:
        job = f"job {holder[0]}" if holder else "nobody"
        other = f"attempt {holder[1]} ({job})" if len(holder) > 1 else job
        error = LeaseLost(f"attempt {number} has lost the run, whose lease {other} holds now: it writes nothing more")
        error.taken = bool(holder)
        raise error


def lost() -> LeaseLost | None:
    """Returns the error of `require` if another attempt is seen to hold the lease; None: none is, or it is unknown."""
    try:
        require(retry_seconds=0)
    except RunError as error:  # there is none for a moment while a job that waits makes sure that its holder is dead
        return error if isinstance(error, LeaseLost) and error.taken else None
    return None


# -- A folder that one run at a time uses, such as checkpoint.dir: a file in it says which run, and where its lease is
#
# | the file | a run that wants to use the folder |
# |---|---|
# | is missing or damaged, or names this run | uses it |
# | names a run whose lease is gone, or has had no heartbeat for TIMEOUT seconds | takes it over |
# | names a run whose lease has had a heartbeat meanwhile | gives up |
# | or the lease that it names cannot be read now | waits for a minute, then UnavailableError |
#
# Of two runs that take a folder at the same moment the later one has it; the other one is told by `require_folder`.


RUN_FILE = ".run"  # name of this file: the run's directory, and the path of its lease, in a line each


def use_folder(folder: Path) -> bool:
    """Makes this process's run the one that uses a folder, once no other run does; outside of a run it does nothing.

    Returns whether another run has used it. Raises LeaseTaken: another run that is alive uses it. OSError: the file
    cannot be written.
    """
    run_dir, lease = os.environ.get("LAUNCHER_RUN_DIR"), os.environ.get("LAUNCHER_LEASE")
    if not run_dir or not lease:
        return False
    watch, took_over = HolderWatch(), False
    while (user := _user_of(folder)) is not None and not _is_run(user[0], run_dir):
        now, path, took_over = time.monotonic(), Path(user[1]), True
        found = retry_read(partial(look, path), path)
        if (seen := unwrap(found)) is None:
            break
        watch.look((path, seen.inode), seen.changed, now)
        if watch.beats:
            job = seen.text.partition(" ")[0].strip()
            raise LeaseTaken(f"{folder} is used by the run in {user[0]}, which is running (job {job})")
        if is_dead(ours=False, alive=None, unchanged=watch.unchanged, timeout=TIMEOUT):
            break
        if not watch.unchanged:  # at the first look
            print(f"launcher: looks for up to {TIMEOUT:g} s whether {user[0]}, which used {folder}, runs", flush=True)
        time.sleep(POLL)
    if user != (run_dir, lease):
        safe_io.write(folder / RUN_FILE, f"{run_dir}\n{lease}\n")
    return took_over


def other_user(folder: Path, run_dir: Path) -> str | None:
    """Returns the directory of another run that uses a folder, and seems to be running; None: none, or not known."""
    with contextlib.suppress(RunError, OSError):
        if (user := _user_of(folder)) is not None and not _is_run(user[0], str(run_dir)):
            return user[0] if time.time() - os.stat(user[1]).st_mtime < SILENCE else None
    return None


def require_folder(folder: Path) -> None:
    """Raises LeaseLost if another run uses a folder now, UnavailableError if that is not known."""
    run_dir = os.environ.get("LAUNCHER_RUN_DIR")
    if run_dir and (user := _user_of(folder)) is not None and user[0] != run_dir:
        raise LeaseLost(f"{folder} is used by the run in {user[0]} now: this run writes nothing more there")


def _is_run(user: str, run_dir: str) -> bool:
    # Or the same directory by another path: commands resolve the links in the path of a run that they resume
    return user == run_dir or bool(unwrap(retry_read(lambda: os.path.samefile(user, run_dir), user)))


def _user_of(folder: Path) -> tuple[str, str] | None:
    found = read_text(folder / RUN_FILE)
    lines = ("" if isinstance(found, Wrong) else unwrap(found) or "").split("\n")
    return (lines[0], lines[1]) if len(lines) == 3 else None


# -- A lease between processes that hold it for moments, and without heartbeats: its file says which process holds it


MOMENTS = 60.0  # seconds after which a holder on another machine counts as dead
PAUSES = (0.002, 0.2)  # first and longest pause between two looks, in seconds
_IN_USE: set[str] = set()  # tokens with which this process holds leases or waits for them


class Holder(Struct):
    token: str  # random text, new for each time that a process takes a lease
    machine: str  # boot id and PID namespace of the process; processes with the same one see each other's PIDs
    pid: int
    started: int  # in clock ticks since the boot

    @classmethod
    def here(cls) -> Holder:
        machine = namespace().replace(" ", "-") or os.urandom(8).hex()
        process = Process.of(os.getpid())
        return cls(os.urandom(8).hex(), machine, process.pid, process.start)

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        words = text.split()
        if len(words) != 4 or not (words[2].isdecimal() and words[3].isdecimal()):
            return None
        return cls(words[0], words[1], int(words[2]), int(words[3]))

    def is_dead(self, other: Holder | None, unchanged: float, timeout: float) -> bool:
        """Returns whether another holder (None: a damaged file) is dead, as far as this process can tell."""
        ours, alive = False, None
        if other is not None and other.machine == self.machine:
            alive = Process(other.pid, other.started, socket.gethostname()).alive()
            ours = (other.pid, other.started) == (self.pid, self.started) and other.token not in _IN_USE
        return is_dead(ours=ours, alive=alive, unchanged=unchanged, timeout=timeout)

    def __str__(self) -> str:
        return f"{self.token} {self.machine} {self.pid} {self.started}"


@contextlib.contextmanager
def hold(path: Path, timeout: float = MOMENTS, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds a lease in the block, and waits for it first; raises OSError, UnavailableError."""
    mine = Holder.here()
    lease = Lease(path, path.with_name(safe_io.temporary_name(path.name)))

    def dead(seen: Seen, watch: HolderWatch) -> bool:
        return mine.is_dead(Holder.parse(seen.text), watch.unchanged, timeout)

    _IN_USE.add(mine.token)
    try:
        lease.write(str(mine))
        lease.take(dead, waiting, PAUSES)
        lease.own.unlink(missing_ok=True)  # nothing would remove it if this process is killed
        yield
    finally:
        _IN_USE.discard(mine.token)
        lease.release()


# -- The submitter's lock of a run or sweep: only the process that holds it submits the run or sweep


SUBMITTING = ".submitting"  # name of the lock file in the directory of a run or sweep
_SUBMITTED: set[Path] = set()  # directories of which this process holds the lock


@contextlib.contextmanager
def only_submitter(folder: Path) -> Iterator[None]:
    """Holds the submitter's lock of a run or sweep while the block runs; waits for it first. Reentrant in a process.

    sbatch or qsub inherits the lock (`run_command.run_submission`). So if a submitter is killed, the next one waits
    until sbatch has ended too, and then can tell whether there is a job. On a file system without locks nothing is
    locked; a job that was submitted before is still found by its token.
    """
    if folder in _SUBMITTED:
        yield
        return

    def waiting() -> None:
        print(f"launcher: waiting for another command that submits in {folder}", file=sys.stderr, flush=True)

    with acquire(folder / SUBMITTING, waiting=waiting):
        _SUBMITTED.add(folder)
        try:
            yield
        finally:
            _SUBMITTED.discard(folder)


def is_being_submitted(folder: Path) -> bool:
    return is_locked(folder / SUBMITTING)
