"""The patterns by which the kind of a failure is known in an error message, or in a line of output.

They match messages of the kernel (errno), Python, torch, gloo, NCCL and CUDA. Tests use recorded lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from launcher.failures.codes import EndKind

# Messages that gloo and NCCL raise in the other ranks when a rank has ended. Errors in a user's code look the same if
# a server cannot be reached, so `lost_peer` also checks the exception's type, and a rank
# (launcher/worker/user_script.py) also checks which code raised it.
LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|Connection refused|Broken pipe|Socket (closed|Timeout)|remote process exited"
    r"|NCCL communicator was aborted|ncclRemoteError|Application timeout caused pair closure"
)

# The first match counts, so specific patterns come before general ones.
_TABLE: tuple[tuple[EndKind, str], ...] = (
    (EndKind.OUT_OF_GPU_MEMORY, r"(CUDA|HIP|XPU) out of memory|OutOfMemoryError|CUDA error: out of memory"
                             r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure 2 'out of memory'"),
    (EndKind.NO_GPU, r"Torch not compiled with (CUDA|XPU) enabled|'torch\._C' has no attribute '_(cuda|xpu)_"
                  r"|No (CUDA|HIP) GPUs are available|No XPU devices are available|Found no NVIDIA driver"
                  r"|NVIDIA driver on your system is too old|no CUDA-capable device|invalid device ordinal"
                  r"|Cannot access accelerator device when none|torch\.(cuda|xpu)\.is_available\(\) is False"
                  r"|torch\.cuda\.\w+ requires CUDA support|dummy base class (Event|Stream|CUDAGraph)"
                  r"|doesn't have (NCCL|XCCL) built in|ProcessGroupNCCL is only supported with GPUs"
                  r"|No supported gpu backend found|(CUDA|XPU)Accelerator` can not run on|support bf16/gpu"),
    (EndKind.GPU_ERROR, r"\bXid\b|uncorrectable ECC|ECC error|fallen off the bus|GPU is lost|(CUDA|HIP) error: "
                     r"|CUDA driver error|CUDNN_STATUS_|CUBLAS_STATUS_|Cuda failure|NVML: .*Unknown Error"),
    (EndKind.SHARED_MEMORY, r"insufficient shared memory|shared memory (object|file|segment)|/dev/shm|</torch_\d"
                         r"|killed by signal: Bus error"),
    (EndKind.DISK_FULL, r"No space left on device|Disk quota exceeded|File too large|Errno (27|28|122)\b"
                     r"|PytorchStreamWriter failed writing|basic_ios::clear: iostream error|unexpected pos \d+ vs \d+"),
    (EndKind.DAMAGED_CHECKPOINT, r"PytorchStreamReader failed|The file might be corrupted|pickle data was truncated"
                              r"|invalid load key|Error while deserializing: "),
    (EndKind.OUT_OF_MEMORY, r"\b(_Array)?MemoryError\b|[Cc]an(no|')t allocate memory|std::bad_alloc|oom[-_]kill"
                         r"|[Oo]ut of memory: Killed process|Errno 12\b|is killed by signal: Killed"),
    (EndKind.LIMIT, r"Too many open files|Errno 24\b|can't start new thread|Resource temporarily unavailable"
                 r"|fork: retry|Errno 11\b"),
    (EndKind.COLLECTIVE_TIMEOUT, r"Watchdog caught collective operation timeout|milliseconds before timing out"
                              r"|Timed out waiting \d+ ?ms for (recv|send)|Application timeout caused pair closure"
                              r"|monitoredBarrier|[Cc]ollective (operation )?time(d )?out"),
    (EndKind.RENDEZVOUS_TIMEOUT, r"DistStoreError|client socket has timed out"
                              r"|wait timeout after \d+ ?ms|RendezvousError|Timed out initializing process group"
                              r"|EADDRINUSE|Address already in use"),
    (EndKind.CONNECTION_LOST, LOST_PEER.pattern + r"|DistNetworkError|ncclSystemError|ncclInternalError"
                           r"|No route to host|Network is unreachable"),
    (EndKind.IMPORT_ERROR, r"\b(ModuleNotFound|Import)Error\b|cannot open shared object file|undefined symbol"
                        r"|version `GLIBC|AttributeError: module '[\w.]+' has no attribute"),
    (EndKind.FILE_MISSING, r"\b(FileNotFound|Permission|IsADirectory|NotADirectory)Error\b"
                        r"|No such file or directory|Permission denied|Read-only file system|Stale file handle"),
)  # fmt: skip
LOG_LINES = 40  # last lines of a rank's log that are searched; older errors may have been handled
SYMPTOMS = tuple((kind, re.compile(pattern)) for kind, pattern in _TABLE)
# Exception types of the launcher, torch and Hydra that mean a kind even if their text names a missing file.
_TYPES = {
    **dict.fromkeys(("BackendError", "CheckpointError", "CheckpointException", "ConfigError", "HydraException",
                     "LauncherError", "RanksDiffer", "TopologyError", "WorkloadError"), EndKind.CONFIG_ERROR),
    "DatasetError": EndKind.FILE_MISSING, "NoGpuError": EndKind.NO_GPU,
}  # fmt: skip
# Errors that mean a damaged file only while a checkpoint is being loaded; the others are in _TABLE.
_DAMAGE = re.compile(r"\b(BadZipFile|EOFError|UnicodeDecodeError)\b|negative seek value|Errno 22\b")
_EXCEPTION = re.compile(r"(?:^|[ (])([A-Za-z_][\w.]*(?:Error|Exception)): ")  # the type before the message
_TORCHS = re.compile(r"RuntimeError|(torch\.distributed\.)?Dist\w*Error")


def kind_of(text: str, exception: str | None = None, *, loads: bool = False) -> EndKind | None:
    """Returns the kind of failure that an error message shows; None: no pattern matches.

    exception: the exception's type; None: the one that the text names (`ValueError: ...`). Those that torch does not
        raise are never CONNECTION_LOST. loads: whether it was raised while a checkpoint was being loaded.
    """
    kinds = (kind for kind, pattern in SYMPTOMS if pattern.search(text))
    from_user = _is_user_exception(text)
    found = next((kind for kind in kinds if not (from_user and kind is EndKind.CONNECTION_LOST)), None)
    if found not in (None, EndKind.FILE_MISSING):
        return found
    named = _EXCEPTION.search(text)
    name = (exception or (named[1] if named else "")).rpartition(".")[2]
    return EndKind.DAMAGED_CHECKPOINT if loads and _DAMAGE.search(text) else _TYPES.get(name, found)


def exception_of(line: str) -> str:
    """Returns the exception's type at the beginning of an error line (`torch.OutOfMemoryError`); empty: none."""
    named = _EXCEPTION.match(line)
    return named[1] if named else ""


def alike(one: str, other: str) -> bool:
    """Returns whether two error lines differ at most in details: the same exception, of the same known kind."""
    found, kind = exception_of(one), kind_of(one)
    return bool(found and kind) and (found, kind) == (exception_of(other), kind_of(other))


def lost_peer(text: str) -> bool:
    """Returns whether an error message is one that torch raises in a rank because another rank has ended."""
    return LOST_PEER.search(text) is not None and not _is_user_exception(text)


def _is_user_exception(text: str) -> bool:
    named = _EXCEPTION.search(text)
    return named is not None and _TORCHS.fullmatch(named[1]) is None


def last_symptom(lines: Iterable[str]) -> tuple[EndKind, str] | None:
    """Returns (kind, line) of the last line that shows a known kind of failure; None: no line does."""
    for line in reversed(list(lines)):
        if kind := kind_of(line):
            return kind, line.strip()
    return None
