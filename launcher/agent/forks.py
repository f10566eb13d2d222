"""Forking a process that has imported torch: whether that is safe, and how to make it fast and safe."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator

LONE = 0.5  # seconds to wait for other threads of this process to end
LARGE = 1 << 21  # bytes of a large page
_MADV_COLLAPSE = 25  # madvise(2)


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """For forks: keeps the children's garbage collector off this process's objects (gc.freeze).

    Without it a rank can hang in its first collection: the destructor of an earlier round's store joins a thread that
    does not exist in the child.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def imports_without_collection() -> Iterator[None]:
    """Context manager for imports: the garbage collector is off, and ignores the imported objects afterwards.

    During the import of torch it would scan all objects many times and find nothing: 0.15 of 0.85 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def use_large_pages() -> None:
    """Moves this process's memory into large pages, if the kernel can (Linux 6.1), so that forks start and end faster.

    A fork copies a page-table entry for each page, and frees it at its end. For the 150 MB of a process with torch this
    takes longer than all else that the launcher does for a point.
    """
    advise = ctypes.CDLL(None).madvise
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
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python warns if there are threads; `unsafe_to_fork` has checked that
        return os.fork()


# -- Imports the modules that ranks share with the process that forks them


WORKLOADS = "workloads"  # package whose modules start no thread and touch no GPU when they are imported


def modules_to_preload(entry: str) -> tuple[str, ...]:
    """Returns the names of the modules to import before ranks are forked.

    | entry | result |
    |---|---|
    | `workloads.ddp:main` | `workloads.ddp` |
    | `my.module:main`, `tests.chaos.counting:main` | nothing |
    | a program (`launcher.worker.main:run_rank`) | nothing |

    The user's modules are imported in each rank, never in the agent. An import may start threads (a matrix product
    starts OpenMP's) or initialize CUDA (`torch.cuda.is_available()`), neither of which survives a fork: the ranks would
    hang or fail. The same holds for `workload.target`, which `workloads.function` imports in the rank.
    """
    module = entry.partition(":")[0]
    return (module,) if module.startswith(f"{WORKLOADS}.") else ()


def preload(entry: str, timeout: int) -> None:
    """Imports the modules for ranks with this `workload.entry`, on the main thread; timeout: seconds for all.

    An import that fails, or takes longer, raises nothing: the ranks repeat it, so that the user sees their traceback,
    or which rank is missing.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        with contextlib.suppress(Exception):
            signal.alarm(timeout)
            for name in modules_to_preload(entry):
                importlib.import_module(name)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
