"""Locks on files: flock on this machine, and hard links on a shared file system.

No lock is taken with lockf, because flock does not see such locks, except over NFS. The kernel releases a lock when its
file is closed, also when the process is killed. A child that inherits the file keeps the lock.

| the file | `acquire` | `try_acquire` | `is_locked` |
|---|---|---|---|
| is not locked | locks it | locks it, yields True | False |
| is locked by another process | waits | yields False | True |
| is on a file system without locks (ENOLCK, ENOTSUP, ...) | runs the block | yields True | False |
| cannot be locked now (EIO, ESTALE, ...) | retries, then UnavailableError | same | same |
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

from launcher.files import run_files
from launcher.files.shared_files import read_text, retry_read, unwrap
from launcher.processes import Process, namespace
from launcher.structs import Struct

WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_LOCKED = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def acquire(path: Path, *, inheritable: bool = False, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock of a file, made if missing, in the block; waits for it first.

    inheritable: whether programs that are started in the block keep the lock until they end.
    """
    with _open(path) as file:
        os.set_inheritable(file.fileno(), inheritable)
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


# -- A lock between processes of several nodes, on any shared file system: a file that one process makes with link(2)
#
# `acquire` above needs flock, which some shared file systems do not have, and others silently restrict to one node. But
# the kernel does not release this lock when its holder is killed, so each waiting process decides whether the holder is
# dead:
#
# | the holder | the lock is taken over |
# |---|---|
# | is a process of this machine that has ended | at once |
# | is this process, which failed to release the lock (the file server did not respond) | at once |
# | is on another machine | after the holder in the file has not changed for `timeout` seconds |
# | is a process of this machine that exists, even if it is suspended | never |
#
# Times are measured with the waiting process's monotonic clock, so clocks of nodes need not agree. A holder on another
# machine that was cut off for longer than `timeout` may return and still believe that it holds the lock. So the data
# that the lock protects must tolerate two processes that append at once; see `launcher.search.search`.


TIMEOUT = 60.0  # seconds after which a holder on another machine counts as dead; see the table
POLL = (0.002, 0.2)  # first and longest pause between two polls, in seconds
_IN_USE: set[str] = set()  # tokens with which this process holds locks or waits for them


class Holder(Struct):
    """A process that holds a lock or waits for it."""

    token: str  # random text, new for each time that a process takes a lock
    machine: str  # boot id and PID namespace of the process; processes with the same one see each other's PIDs
    pid: int  # process id
    started: int  # when the process started, in clock ticks since the boot

    @classmethod
    def here(cls) -> Holder:
        """Returns this process, with a new token."""
        machine = namespace().replace(" ", "-") or os.urandom(8).hex()
        process = Process.of(os.getpid())
        return cls(os.urandom(8).hex(), machine, process.pid, process.start)

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        """Returns the holder from the content of a lock's file; None: the file is damaged."""
        words = text.split()
        if len(words) != 4 or not (words[2].isdecimal() and words[3].isdecimal()):
            return None
        return cls(words[0], words[1], int(words[2]), int(words[3]))

    def is_same_process(self, other: Holder) -> bool:
        """Returns whether two holders are the same process, with the same or different tokens."""
        return (self.machine, self.pid, self.started) == (other.machine, other.pid, other.started)

    def __str__(self) -> str:
        return f"{self.token} {self.machine} {self.pid} {self.started}"


def dead(holder: Holder | None, machine: str, alive: bool, unchanged: float, timeout: float = TIMEOUT) -> bool:
    """Returns whether a lock's holder (None: a damaged file) is dead, by the module's table.

    machine: `Holder.machine` of the waiting process.
    alive: whether the holder is a process that runs now, if it is one of this machine.
    unchanged, timeout: seconds without a change that were seen, and that count as dead.
    """
    if holder is not None and holder.machine == machine:
        return not alive
    return unchanged >= timeout


@contextlib.contextmanager
def hold(
    path: Path, timeout: float = TIMEOUT, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:  # fmt: skip
    """Holds the lock in the block; waits for it first if another process holds it; raises OSError.

    timeout: seconds after which a holder on another machine counts as dead.
    """
    mine = Holder.here()
    _IN_USE.add(mine.token)
    try:
        _take(path, mine, timeout, waiting)
        yield
    finally:
        _IN_USE.discard(mine.token)
        if _holder(path) == str(mine):  # else it was taken over
            unwrap(retry_read(path.unlink, path))


def _take(path: Path, mine: Holder, timeout: float, waiting: Callable[[], None]) -> None:
    seen, since, pause = "", time.monotonic(), POLL[0]
    while True:
        try:
            run_files.create(path, str(mine).encode())
            return
        except FileExistsError:
            text = _holder(path)
        now = time.monotonic()
        if text is None:  # released meanwhile
            continue
        if text != seen:
            seen, since = text, now
        holder = Holder.parse(text)
        unreleased = holder is not None and mine.is_same_process(holder) and holder.token not in _IN_USE
        alive = holder is not None and Process(holder.pid, holder.started, socket.gethostname()).alive()
        if unreleased or dead(holder, mine.machine, alive, now - since, timeout):
            _take_away(path, text)
            continue
        waiting()
        time.sleep(pause)
        pause = min(2 * pause, POLL[1])


def _take_away(path: Path, text: str) -> None:
    # Removes the lock of a dead holder, unless another process has removed it meanwhile.
    # The file is first renamed, and then read: if it is by then the lock of a new holder, it is put back.
    if _holder(path) != text:
        return
    aside = path.with_name(run_files.temporary_name(path.name))
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if _holder(aside) != text:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _holder(path: Path) -> str | None:
    return unwrap(read_text(path))
