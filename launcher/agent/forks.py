"""Forks of a process that has imported torch: whether they are safe, their cost, and garbage collection."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
import warnings
from collections.abc import Iterable, Iterator

LONE = 0.5  # seconds to wait for other threads of this process that are ending
LARGE = 1 << 21  # bytes of a large page
_MADV_COLLAPSE = 25  # madvise(2)


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Context for forks: garbage of this process, such as the store of an earlier round, is never collected in them.

    A store's destructor joins its thread, which does not exist in a fork: a rank hung for ever in its first collection.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def imports_without_collection() -> Iterator[None]:
    """Context for imports: the garbage collector is off, and ignores the imported objects afterwards.

    During the import of torch it scans all objects many times and finds nothing: 0.15 of 0.85 s.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def use_large_pages() -> None:
    """Puts this process's memory into large pages, where the kernel can (Linux 6.1): forks start and end faster.

    A fork copies an entry for each page, and frees it at its end. Of 150 MB with torch this takes longer than all that
    the launcher does for a point. What a fork writes to is copied in small pages, as ever.
    """
    advise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for begin, end in large_ranges(maps.readlines()):
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)  # refused: nothing changes


def large_ranges(maps: Iterable[str]) -> list[tuple[int, int]]:
    """The ranges of addresses, begin and end, in a process's private memory that whole large pages can take. Pure.

    Args:
        maps: lines of /proc/PID/maps (man 5 proc).
    """
    found = []
    for line in maps:
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in addresses.split("-"))
            begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
            found += [(begin, end)] if begin < end else []
    return found


def unsafe_to_fork() -> str:
    """Returns why a fork of this process is unsafe, as text; empty: it is safe."""
    if _uses_gpu():
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
    """Returns the number of threads of this process, with those of native libraries."""
    with os.scandir("/proc/self/task") as threads:
        return sum(1 for _ in threads)


def _uses_gpu() -> bool:
    """Returns whether CUDA or ROCm has opened its devices. NVML, which only queries GPUs, does not open these."""
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # the one that reads this folder
                if os.readlink(entry.path) in ("/dev/nvidia-uvm", "/dev/kfd"):
                    return True
    return False


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python warns where there are threads; see `unsafe_to_fork`
        return os.fork()
