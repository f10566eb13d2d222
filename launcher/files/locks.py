"""Locks: those of the kernel, on machines where they work, and leases, which work on any shared file system.

`flock` is missing on some shared file systems, and others silently restrict it to one node.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from launcher.errors import UnavailableError
from launcher.files import run_files, shared_files
from launcher.files.shared_files import Ok, backoff, is_transient, retry_read, unwrap
from launcher.processes import Process, namespace
from launcher.structs import Struct

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
    """Holds the lock of a file, made if missing, in the block, and in programs that it starts; waits for it first."""
    with _open(path) as file:
        os.set_inheritable(file.fileno(), True)
        if not _flock(file, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if waiting is not None:
                waiting()
            _flock(file, path, fcntl.LOCK_EX)
        yield


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
# writes is checked: by `launcher.runs.lease.require`, and for the journal of a search in `launcher.search.search`.


LOCK_SECONDS = 30.0  # seconds after which the folder PATH.lock is that of a killed job


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
    """Returns what the file of a lease is now; None: there is none. OSError as `run_files.open_regular`."""
    with contextlib.suppress(FileNotFoundError), run_files.open_regular(path) as file:
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
    aside = path.with_name(run_files.temporary_name(path.name))
    with contextlib.suppress(FileNotFoundError):  # NFS may have lost the reply to a rename that was made
        path.rename(aside)
    if retry_read(lambda: is_it(aside), aside) != Ok(True):
        unwrap(retry_read(lambda: run_files.link(aside, path), aside))
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
                        self._remove_dead(seen)
                        continue
                answered = now
            except OSError as error:
                if not is_transient(error):
                    raise
                if now - answered >= shared_files.IN_A_JOB:
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
            return run_files.link(self.own, self.path)
        except OSError as error:
            if error.errno in run_files.WITHOUT_LINKS:
                raise WithoutLinks(error.errno, error.strerror, str(self.path)) from None
            raise

    def _remove_dead(self, seen: Seen) -> None:
        # Jobs of older versions unlink a dead lease that they have just looked at, while they have made this folder
        lock = f"{self.path}.lock"
        for _ in backoff(LOCK_SECONDS, 0.1, 0.1):
            with contextlib.suppress(OSError):
                os.mkdir(lock)
                break
        try:
            remove(self.path, lambda path: look(path) == seen)
        finally:
            with contextlib.suppress(OSError):
                os.rmdir(lock)


# -- A lease between processes that hold it for moments, and without heartbeats: its file says which process holds it


TIMEOUT = 60.0  # seconds after which a holder on another machine counts as dead
POLL = (0.002, 0.2)  # first and longest pause between two polls, in seconds
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
def hold(path: Path, timeout: float = TIMEOUT, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds a lease in the block, and waits for it first; raises OSError, UnavailableError."""
    mine = Holder.here()
    lease = Lease(path, path.with_name(run_files.temporary_name(path.name)))

    def dead(seen: Seen, watch: HolderWatch) -> bool:
        return mine.is_dead(Holder.parse(seen.text), watch.unchanged, timeout)

    _IN_USE.add(mine.token)
    try:
        lease.write(str(mine))
        lease.take(dead, waiting, POLL)
        lease.own.unlink(missing_ok=True)  # nothing would remove it if this process is killed
        yield
    finally:
        _IN_USE.discard(mine.token)
        lease.release()
