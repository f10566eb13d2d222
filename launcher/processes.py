"""Processes on this machine: finding, signalling and forking them; killing what they leave; limits; memory files."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import resource
import signal
import socket
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from launcher.fast_dataclasses import Struct


class Process(Struct):
    """The leader of a process group."""

    pid: int  # the process id, which is also the id of its group
    start: int  # the start time in clock ticks since boot: distinguishes it from a later process with the same id
    host: str  # name of the host where it runs

    @classmethod
    def of(cls, pid: int) -> Process:
        """Returns the process with this id on this machine; without such a process `start` is 0."""
        found = _stat(pid)
        return cls(pid, int(found[19]) if found else 0, socket.gethostname())

    def here(self) -> bool:
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Returns whether the process runs on this machine, not as a zombie; raises OSError."""
        found = _stat(self.pid) if self.here() else []
        return bool(found) and found[0] != "Z" and int(found[19]) == self.start

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole process group, if the process is alive on this machine."""
        if self.alive():
            os.killpg(self.pid, number)


def _stat(pid: int) -> list[str]:
    # The fields of /proc/PID/stat (man 5 proc) from the third on; empty: it is gone, or /proc hides it
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last: another user's, with hidepid=1
        return []


def state(pid: int) -> str:
    """Returns the kernel's state letter of a process (R, S, D, T, ...); empty if it is gone, or cannot be looked at."""
    with contextlib.suppress(OSError):
        return "".join(_stat(pid)[:1])
    return ""


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process and its living descendants (man 5 proc, /proc/PID/stat); 0 if it is gone."""
    ticks = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(each)[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def namespace() -> str:
    """Returns a string that identifies this boot of this machine and the process-id namespace; empty: unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


# -- Kills everything that a rank leaves behind: the agent adopts processes that lose their parent, and kills them


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


@functools.cache
def _libc() -> Any:
    import ctypes  # each job's driver loads this module, and has no use for it

    return ctypes.CDLL(None)


def adopt() -> None:
    """Makes this process the new parent of its descendants that lose their parent (prctl: a child subreaper)."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process (a fork) when its parent ends; exits with 1 if it has."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children(pid: int | str = "self") -> set[int]:
    """Returns the ids of a process's children (empty without CONFIG_PROC_CHILDREN); OSError: they cannot be read."""
    found: set[int] = set()
    with os.scandir(f"/proc/{pid}/task") as threads:
        for entry in threads:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # this thread has ended
                found.update(map(int, Path(entry.path, "children").read_text().split()))
    return found


def family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for child in children(pid):
            yield from family(child)


def _children_or_none() -> set[int]:
    with contextlib.suppress(OSError):
        return children()
    return set()


def kill(keep: Collection[int], timeout: float = 2.0) -> list[int]:
    """Kills and reaps all children but `keep`, and orphans that it adopts, in `timeout`; returns their ids."""
    give_up, killed = time.monotonic() + timeout, set()
    while strangers := _children_or_none() - set(keep):
        killed |= strangers
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > give_up:
            break
    return sorted(killed)


# -- Kills everything that a task leaves behind, all of which inherits LAUNCHER_GUARD. PBS without its cgroups hook
# kills the sessions of a job that it knows, and a process that called setsid survives


GUARD = "LAUNCHER_GUARD"
GUARD_PAUSE = 0.3  # seconds between polls


def start_guard() -> None:
    """Before threads: forks a child that waits for this process and kills the others with its LAUNCHER_GUARD."""
    mark, watched = os.environ.get(GUARD), os.getpid()
    if not mark or os.fork():
        return
    try:
        os.setsid()  # else the end of the job would kill the guard, too
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        while os.getppid() == watched:
            time.sleep(GUARD_PAUSE)
        while kill_marked(mark):  # a process may fork while it is being killed: the next round finds the child
            time.sleep(GUARD_PAUSE)
    finally:
        os._exit(0)


def kill_marked(mark: str) -> bool:
    """Kills this user's other processes here with LAUNCHER_GUARD=`mark`; returns whether there were any."""
    wanted, found = os.fsencode(f"{GUARD}={mark}"), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                marked = wanted in file.read().split(b"\0")
            if marked:
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found


# -- Forking a process that has imported torch: whether that is safe, and how to make it fast and safe


LONE = 0.5  # seconds to wait for other threads of this process to end
LARGE = 1 << 21  # bytes of a large page
_MADV_COLLAPSE = 25  # madvise(2)


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """For forks: keeps the child's garbage collector off objects whose destructor joins a thread that it lacks."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@functools.cache
def use_large_pages() -> None:
    """Moves this process's memory into large pages, once, if the kernel can (Linux 6.1): a fork copies each's entry.

    With torch loaded it takes half a second of CPU time, a fork then 4 ms, not 17, and the end of the child 8, not 20.
    """
    import ctypes  # each job's driver loads this module, and has no use for it

    advise = _libc().madvise
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for begin, end in large_ranges(maps.readlines()):
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)  # refused: nothing changes


def large_ranges(maps: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the private address ranges of whole large pages in the lines of /proc/PID/maps (man 5 proc)."""
    found = []
    for line in maps:
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in addresses.split("-"))
            begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
            found += [(begin, end)] if begin < end else []
    return found


def unsafe_to_fork() -> str:
    """Returns why forking this process is unsafe, as the end of a sentence ("has 3 threads"); empty: it is safe."""
    if uses_gpu():
        return "has initialised a GPU"
    if _threads() > 1:
        # Libraries with fork handlers (OpenBLAS in numpy) end their threads before a fork, and restart them on demand.
        # This trial fork leaves the threads of all other libraries.
        with contextlib.suppress(OSError):
            if (pid := fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    give_up = time.monotonic() + LONE
    while (threads := _threads()) > 1 and time.monotonic() < give_up:
        time.sleep(0.005)
    return f"has {threads} threads" if threads > 1 else ""


def _threads() -> int:
    with os.scandir("/proc/self/task") as threads:
        return sum(1 for _ in threads)


def uses_gpu(process: int | str = "self", devices: tuple[str, ...] = ("/dev/nvidia-uvm", "/dev/kfd")) -> bool:
    """Returns whether CUDA or ROCm has opened its devices (NVML does not); raises OSError if it cannot look."""
    with os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # the descriptor of this scandir itself
                if os.readlink(entry.path).startswith(devices):
                    return True
    return False


def fork() -> int:
    with warnings.catch_warnings():
        # Python warns if there are threads; callers know that these do no harm
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# -- Limits of this process. Slurm hands on the submitting shell's soft limit of open files, usually 1,024, on which
# select(2) in other programs relies


SPARE_FILES = 64
_users: int | None = None  # the soft limit that this process began with; forks inherit it


def raise_limit() -> int:
    """Raises the soft limit (`ulimit -n`) to the hard one (`ulimit -Hn`) if the kernel allows it, and returns it."""
    global _users
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _users is None:
        _users = soft
    with contextlib.suppress(ValueError, OSError):  # sysctl fs.nr_open is lower now than the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_files(more: int) -> None:
    """Raises the soft limit if it leaves no room for so many more open files than this process has, and some others."""
    with os.scandir("/proc/self/fd") as entries:
        needed = sum(1 for _ in entries) + more + SPARE_FILES
    if needed > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        raise_limit()


def restore_limit() -> None:
    """In a fork that becomes the user's: undoes `raise_limit`."""
    if _users is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_users, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


# -- A process, memory or file descriptor that the system does not give now is waited for


T = TypeVar("T")
NOT_NOW_SECONDS = 5.0
NOT_NOW = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS)


def waited_out(call: Callable[[], T]) -> T:
    """Returns what the call returns. Raises OSError: it fails for another reason, or for NOT_NOW_SECONDS."""
    give_up, pause = time.monotonic() + NOT_NOW_SECONDS, 0.01
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in NOT_NOW or time.monotonic() + pause >= give_up:
                raise
        time.sleep(pause)
        pause = min(0.5, 2 * pause)


# -- An unnamed file in memory, whose descriptor is passed on between processes of one user


_IN_MEMORY = "/dev/shm"  # noqa: S108  the files there lose their names at once


def memory_file(name: str) -> int:
    """Makes an unnamed file in memory (without /dev/shm: in the temporary folder) and returns its descriptor.

    Forked children inherit it, programs that they execute do not. os.memfd_create is missing from a Python that was
    built with a glibc before 2.27 (those of conda and of uv), and from kernels before 3.17.
    """
    create = getattr(os, "memfd_create", None)
    if create is not None:
        try:
            return int(create(name))
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
    folder = _IN_MEMORY
    if not os.path.isdir(folder):
        import tempfile  # it loads random and shutil, for few machines

        folder = tempfile.gettempdir()
    path = f"{folder}/{name}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def shared_file(variable: str, name: str) -> tuple[int, int] | None:
    """Returns the descriptor of a `memory_file`, and this rank's place, by a variable `PID:DESCRIPTOR:PLACE`.

    The rank sets it for the program that it executes; None: there is none, or this is a child process of the rank.
    """
    with contextlib.suppress(KeyError, ValueError, OSError):
        pid, descriptor, place = map(int, os.environ[variable].split(":"))
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if pid == os.getpid() and target.name.startswith((f"memfd:{name}", f"{name}-")):
            return descriptor, place
    return None
