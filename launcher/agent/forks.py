"""Forking a process that has imported torch: whether that is safe, and how to make it fast and safe."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
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
