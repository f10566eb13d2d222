"""What a rank has printed, or an error says: the kind of failure, by patterns; tracebacks and stacks, shortened.

The patterns match messages of the kernel (errno), Python, torch, gloo, NCCL and CUDA. Tests use recorded lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
# Exception types of the launcher, torch and Hydra that mean a kind even if their text names a missing file.
_TYPES = {
    **dict.fromkeys(("BackendError", "CheckpointError", "CheckpointException", "ConfigError", "HydraException",
                     "LauncherError", "Misfit", "RanksDiffer", "TopologyError", "WorkloadError"), EndKind.CONFIG_ERROR),
    "Damaged": EndKind.DAMAGED_CHECKPOINT, "DatasetError": EndKind.FILE_MISSING, "NoGpuError": EndKind.NO_GPU,
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
    kinds = (kind for kind, pattern in _TABLE if re.search(pattern, text))
    from_user = _is_user_exception(text)
    found = next((kind for kind in kinds if not (from_user and kind is EndKind.CONNECTION_LOST)), None)
    if found not in (None, EndKind.FILE_MISSING):
        return found
    named = _EXCEPTION.search(text)
    name = (exception or (named[1] if named else "")).rpartition(".")[2]
    return EndKind.DAMAGED_CHECKPOINT if loads and _DAMAGE.search(text) else _TYPES.get(name, found)


def first_line(text: str) -> str:
    """Returns the first line of an error's text and, of an error of NCCL, its cause, which torch adds further down."""
    first, _, more = text.strip().partition("\n")
    cause = more.partition("Last error:")[2].strip().partition("\n")[0]
    return f"{first}: {cause}" if cause else first


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


# -- tracebacks and stacks

FRAMES = 6  # newest frames of a stack that are shown
LONG = 8  # a traceback with more frames than this is shown without frames of libraries
_HEAD = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'  File "([^"]*)", line \d+')
_TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ")
_IMPORT = re.compile(r"^<frozen |/importlib/__init__\.py$")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen ")
_LAUNCHER = re.compile(
    r"/launcher/(agent|worker)/|/torch/distributed/elastic/|/torch/multiprocessing/|/multiprocessing/"
)


def without_torchs_prefix(line: str) -> str:
    """Removes the `[rank3]: ` that torch puts before each line of a traceback while there is a process group."""
    return _TORCHS_PREFIX.sub("", line)


def own_frames(trace: str) -> str:
    """Shortens a traceback, so that the user's frames stand out: no import machinery; if it is LONG, few libraries."""
    lines = trace.strip().splitlines()
    blocks = _blocks(lines)
    frames = [at for at, (path, _) in enumerate(blocks) if path]
    shown: list[str] = []
    skipped = 0
    for at, (path, block) in enumerate(blocks):
        follows = blocks[at + 1][0] if at + 1 < len(blocks) else ""
        library = bool(path and _LIBRARY.search(path))
        if path and (_IMPORT.search(path) or (len(frames) > LONG and library and follows and _LIBRARY.search(follows))):
            skipped += 1
            continue
        if skipped and len(frames) > LONG:
            shown.append(f"  ... {skipped} frame{'s' if skipped > 1 else ''} of libraries")
        skipped = 0
        shown += block
    return "\n".join(shown)


def _blocks(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _FRAME.match(line):
            blocks.append((match[1], [line]))
        elif blocks and (not blocks[-1][0] or line.startswith("   ")):
            blocks[-1][1].append(line)
        else:
            blocks.append(("", [line]))
    return blocks


def before_traceback(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a log before its last traceback, or before the chain of tracebacks that ends with it."""
    heads = [at for at, line in enumerate(lines) if line.startswith(_HEAD)]
    while heads:
        at = heads.pop()
        between = "\n".join(lines[heads[-1] : at]) if heads else ""
        if not any(words in between for words in _CHAIN):
            return list(lines[:at])
    return list(lines)


def last_traceback(lines: Sequence[str]) -> str:
    """Returns the last traceback (or chain of tracebacks) in a log, with the error line; empty: there is none."""
    rest = list(lines[len(before_traceback(lines)) :])
    heads = [at for at, line in enumerate(rest) if line.startswith(_HEAD)]
    if not heads:
        return ""
    inside = range(heads[-1] + 1, len(rest))
    end = next((at for at in inside if rest[at].strip() and not rest[at][0].isspace()), len(rest) - 1)
    return "\n".join(rest[: end + 1])


def crash_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the crashed thread's newest frames in a log, after faulthandler's `Fatal Python error: ...`, or ()."""
    begin = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Fatal Python error: ")), None)
    if begin is None:
        return ()
    text = "\n".join(lines[begin:])
    _, found, current = text.partition("Current thread ")
    return main_frames(current.partition("\n\n")[0]) if found else ()


def before_crash(lines: Sequence[str]) -> list[str]:
    begin = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error: ")), len(lines))
    return list(lines[:begin])


def main_thread(stack: str) -> list[str]:
    return re.split(r"\n\s*\n", stack.strip())[-1].splitlines()  # faulthandler writes the main thread last


def main_frames(stack: str) -> tuple[str, ...]:
    """Returns the main thread's newest frames in faulthandler's output, but ours; its first line if it has none."""
    frames = [line.strip() for line in main_thread(stack) if line.lstrip().startswith("File ")]
    end = next((at for at, line in enumerate(frames) if line.endswith("in _run_workload")), len(frames))
    kept = frames[:end] or frames
    own = [line for line in kept if not _LAUNCHER.search(line)]
    return tuple((own or kept)[:FRAMES]) or tuple(stack.strip().splitlines()[:1])


_ERROR = re.compile(r"[A-Za-z_][\w.]*(:|$)")


def last_error(text: str) -> str:
    """Returns the error line of the last traceback in a rank's log (`ValueError: no`); empty: there is no traceback."""
    _, found, tail = text.rpartition(_HEAD)
    if not found:
        return ""
    return next((line for line in tail.splitlines() if line and not line[0].isspace() and _ERROR.match(line)), "")
