"""What a rank shares with its agent: a gate that it waits at to join, a report of how it ended, and memory.

The agent passes descriptors in the rank's environment. The rank first of all removes the first two from there:

| variable | descriptor of |
|---|---|
| `LAUNCHER_GATE` | a pipe that becomes readable when the rank may use the store; its content is not read |
| `LAUNCHER_REPORT` | a file in memory, in which the rank writes how it ended: one JSON object, never a pickle |
| `LAUNCHER_MEMORY` | a file in memory for copies of the state, which outlive the rank: `checkpoint.memory_copies` |

A report is `{"returned": METRICS}` or `{"error": ...}` (`user_script.error_report`). A rank that is killed, or ends by
os._exit, writes none.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import re
import select
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import process, util
from pathlib import Path
from typing import Any

from launcher import errors, formatting, io_bounds, processes
from launcher.failures.known_errors import LOG_LINES, LOST_PEER, first_line, last_error, without_torchs_prefix
from launcher.files import safe_io
from launcher.worker import user_script

GATE, REPORT, MEMORY = "LAUNCHER_GATE", "LAUNCHER_REPORT", "LAUNCHER_MEMORY"
REACHED = "LAUNCHER_REACHED"  # variable: highest step of the run that an earlier round of the attempt has done
_MEMORY_NAME = "launcher-memory"
_MEMORY_SIZE = 1 << 62  # bytes; pages that nobody writes take no memory
BOX = " \t─│╭╮╰╯"  # around the lines of an error of typer
LONGEST_LINE = 1000  # most characters of a line that is taken for the error
SYMPTOM_DELAY = 2.0  # seconds by which a rank that lost a peer delays its own failure, so that the cause comes first
_LAUNCHER = Path(__file__).parents[1]
# Files and folders with the frames that call a workload or a function; they are cut from the traceback that users see.
ABOVE = (
    *user_script.ABOVE,
    f"{_LAUNCHER / 'agent'}/",
    f"{_LAUNCHER / 'worker'}/",
    str(_LAUNCHER.parent / "workloads" / "function.py"),
    importlib.__file__,
    "<frozen importlib._bootstrap",
)


class GateError(RuntimeError):
    """The agents did not let this rank join in time."""


@dataclass(frozen=True)
class AgentChannels:
    gate: int
    report: int

    def wait(self, timeout: float) -> None:
        """Waits until the agent lets this rank use the store. Raises GateError: `timeout` seconds have passed."""
        gate = select.poll()  # select() cannot handle descriptors above 1023
        gate.register(self.gate, select.POLLIN)
        if not gate.poll(timeout * 1000):
            raise GateError(
                f"the agents did not let this rank join the others within {timeout:g} s (launch.rendezvous_timeout): "
                "the agent of rank 0 may still be starting its own ranks"
            )
        os.close(self.gate)


def take() -> AgentChannels:
    """Removes this rank's descriptors from the environment, so that child processes do not get them; returns them."""
    return AgentChannels(int(os.environ.pop(GATE)), int(os.environ.pop(REPORT)))


def make_memory() -> int:
    """In an agent: makes the file for copies of its ranks' states; returns its descriptor; -1: there is none."""
    file = -1
    try:
        file = processes.memory_file(_MEMORY_NAME)
        os.ftruncate(file, _MEMORY_SIZE)
        return file
    except OSError as error:  # it may be a file in a file system, which has a limit of its own
        formatting.log_line(f"no memory for copies of states (checkpoint.memory): {error}")
        if file >= 0:
            os.close(file)
        return -1


def share_memory(file: int, place: int) -> None:
    """In a rank: lets this process, also as the program that it executes, find that file, and its place."""
    if file >= 0:
        os.environ[MEMORY] = f"{os.getpid()}:{file}:{place}"


def redone(step: int) -> int | None:
    """Returns how many steps the last round's ranks had done after this one; None: they are not known."""
    reached = int(os.environ.get(REACHED, "-1"))
    return max(0, reached - step) if reached >= 0 else None


def shared_memory() -> tuple[int, int] | None:
    """Returns that file and this rank's place; None: there is none, or this is a child process of a rank."""
    return processes.shared_file(MEMORY, _MEMORY_NAME)


@dataclass(frozen=True)
class WorkerError:
    """The error with which a rank failed: from its report, torch's `@record`, or what it has printed last."""

    # raised, lost peer (the rank lost its connection to another rank), sys.exit (called with a text), usage (it refuses
    # its arguments or its config), or printed (no error is known, only its last line)
    code: str
    type: str  # name of the exception's class; empty: there is none
    message: str  # text of the exception, or what the rank has printed last
    traceback: str  # the traceback as Python prints it, starting at the user's frames
    lost_peer: bool = False  # whether the rank failed because another rank was gone
    final: bool = False  # whether a retry would fail too
    reading: str = ""  # path of the checkpoint that was being loaded; empty: none was

    @property
    def line(self) -> str:
        """One line, as Python prints it at the end of a traceback: `ValueError: the loss is a banana`."""
        kind = "" if self.code == "sys.exit" else self.type
        return first_line(": ".join(filter(None, (kind, self.message))))


def run_and_report(call: Callable[[], Mapping[str, Any] | None], report: int) -> int:
    """Does a rank's work in this process, and writes its metrics or its error into the report."""
    owner = os.getpid()
    try:
        returned = call() or {}
        if os.environ.get("LOCAL_RANK", "0") != "0":  # only the first rank of an agent passes its metrics on
            returned = {}
        metrics = json.loads(safe_io.json_that_fits(returned, io_bounds.RESULT_BYTES)[0])
        user_script.write_report(report, owner, {"returned": metrics})
        return errors.DONE
    except SystemExit as leave:
        if leave.code is None or leave.code == 0:
            user_script.write_report(report, owner, {"returned": {}})
            return errors.DONE
        if error := user_script.shared_with_agent(leave, LOST_PEER.pattern, ABOVE):
            user_script.write_report(report, owner, {"error": error}, SYMPTOM_DELAY)
        if isinstance(leave.code, int):
            return leave.code
        print(leave.code, file=sys.stderr)
        return errors.FAILED
    except KeyboardInterrupt as error:
        traceback.print_exception(*user_script.cut(error, ABOVE))
        return errors.INTERRUPTED
    except BaseException as error:
        whole = error.__traceback__
        shown = user_script.cut(error, ABOVE)
        entry = user_script.error_report(error, shown, LOST_PEER.pattern)
        if shown[2] is None and not entry["final"]:  # raised by the launcher itself: a defect, so show its frames
            shown = type(error), error.with_traceback(whole), whole
            entry = user_script.error_report(error, shown, LOST_PEER.pattern)
        traceback.print_exception(*shown)  # not by torch's hook, which prefixes each line with the rank
        user_script.write_report(report, owner, {"error": entry}, SYMPTOM_DELAY)
        return errors.NO_RETRY if getattr(error, "exit_code", None) == errors.NO_RETRY else errors.FAILED


def begin_process() -> None:
    """Makes a forked process behave like a new one: without its parent's exit handlers, children and random numbers."""
    atexit._clear()
    if random := sys.modules.get("numpy.random"):  # Python's own does this itself
        random.seed()
    # As multiprocessing does in processes that it forks itself: the parent's children are not this one's.
    process._children.clear()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    util._run_after_forkers()  # type: ignore[attr-defined]
    atexit.register(util._exit_function)  # type: ignore[attr-defined]


def end_process(code: int) -> None:
    """Ends the process as the interpreter would: waits for threads, calls exit handlers, and exits with this code."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(code & 0xFF)


def read_report(descriptor: int) -> tuple[dict[str, Any] | None, WorkerError | None]:
    """Returns the metrics of a rank that succeeded, or the error of one that failed, if it left a readable report."""
    try:
        report = json.loads(os.pread(descriptor, io_bounds.REPORT_BYTES, 0))
    except (OSError, ValueError):
        return None, None
    if not isinstance(report, dict):
        return None, None
    returned, error = report.get("returned"), report.get("error")
    if isinstance(error, dict):
        names = ("code", "type", "message", "traceback", "reading")
        texts: dict[str, Any] = {name: str(error.get(name, "")) for name in names}
        lost, final = error.get("lost_peer") is True, error.get("final") is True
        return None, WorkerError(**texts, lost_peer=lost, final=final)
    return returned if isinstance(returned, dict) else None, None


def read_error_file(path: Path) -> WorkerError | None:
    """Returns the error in a file of torch's `@record` (TORCHELASTIC_ERROR_FILE); None: the file cannot be read."""
    try:
        with open(path, "rb") as file:
            os.fchmod(file.fileno(), 0o600)  # torch creates it with the umask of the user's code
            message = json.loads(file.read(io_bounds.REPORT_BYTES))["message"]
        trace = str(message["extraInfo"]["py_callstack"])
        kind, _, text = str(message["message"]).partition(": ")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    lost = _record_lost_peer(kind, text, trace)
    final = kind in user_script.FINAL
    return WorkerError("lost peer" if lost else "raised", kind, text, trace, lost_peer=lost, final=final)


def _record_lost_peer(kind: str, text: str, trace: str) -> bool:
    if kind == "DistNetworkError":
        return True
    if not LOST_PEER.search(text) or not (kind == "RuntimeError" or kind.startswith("Dist")):
        return False
    files = re.findall(r'^  File "(.*)", line \d+', trace, re.MULTILINE)
    return kind != "RuntimeError" or bool(files and re.search(r"/torch/(distributed|autograd)/", files[-1]))


def read_last_words(path: Path, code: int) -> WorkerError | None:
    """Returns the error that the end of a rank's standard error shows; None: the file is empty or cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - io_bounds.LAST_WORDS_BYTES))
            return last_words(file.read().decode(errors="replace"), code)
    except OSError:
        return None


# What the C++ library prints of an error of NCCL that torch's watchdog has found and aborts for, up to its stack
_ABORT = re.compile(
    r"terminate called after throwing an instance of 'c10::DistBackendError'\s+what\(\): +(.*?)"
    r"(?=\nException raised from|\n+Fatal Python error|\Z)", re.DOTALL,
)  # fmt: skip


def last_words(text: str, code: int) -> WorkerError | None:
    """Returns the error that the last lines of a rank's standard error show (of a traceback its last); None: none.

    With exit code 2 and a line that starts with `usage:`, as of argparse, click and getopt, its code is usage. Of a
    rank that a signal ended, only that it has lost a peer counts, for which NCCL's watchdog aborts it.
    """
    if code < 0:
        aborted = " ".join("".join(_ABORT.findall(text)[-1:]).split())[:LONGEST_LINE]
        lost = LOST_PEER.search(aborted)
        return WorkerError("lost peer", "DistBackendError", aborted, "", lost_peer=True) if lost else None
    printed = (without_torchs_prefix(formatting.clean(each)) for each in text.splitlines())
    lines = [line for each in printed if (line := each.rstrip(BOX))]
    usage = code == errors.BAD_INPUT and any(line.lstrip(BOX)[:6].lower() == "usage:" for line in lines)
    message = "" if usage else last_error("\n".join(lines[-LOG_LINES:]))
    message = (message or "".join(lines[-1:]).lstrip(BOX))[:LONGEST_LINE]
    return WorkerError("usage" if usage else "printed", "", message, "") if message else None
