"""Forks of a process that has imported torch: whether they are safe, and garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Iterator

LONE = 0.5  # seconds to wait for other threads of this process that are ending


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
