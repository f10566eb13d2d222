"""The debugger of a rank: breakpoints, and the console through which `attach --debug` reaches it.

| the rank sends | meaning |
|---|---|
| `{"text": ...}` | show this text |
| `{"prompt": ...}` | ask the user for a line |
| `{"runs": true}` | the rank has left the prompt and runs until its next breakpoint |
| `{"bye": REASON}` | the connection ends; the reason may be empty |

| the terminal sends | meaning |
|---|---|
| `{"line": ...}` | the line that the user typed |

The rank needs no thread for this: it reads and writes only while it is at a prompt. A terminal that reconnects gets the
position and the output of the last command; a second one replaces the first. The socket accepts only this user.
"""

from __future__ import annotations

import bdb
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import pdb
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.formatting import format_time, log_line
from launcher.runs.directory import Events, current_attempt
from launcher.runs.events import Breakpoint, Continued
from launcher.runs.job_file import time_left
from launcher.schedulers.topology import hosts_in

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan


SCREEN = 1 << 16  # most characters of earlier output that are sent to a new terminal
SEND_TIMEOUT = 10.0  # seconds after which a terminal that reads nothing is disconnected
LONGEST = 1 << 20  # most bytes of one message from a terminal
_LONGEST_PATH = 90  # bytes; with the socket's name Linux allows 107 (man 7 unix)


class Console(io.TextIOBase):
    """The debugger's standard input and output, connected to a terminal through the Unix socket `path`."""

    def __init__(self, folder: Path) -> None:
        # folder: see `private_folder`
        self.path = str(folder / str(os.getpid()))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._terminal: socket.socket | None = None
        self._received = b""
        self._unsent, self._head, self._screen, self._prompt = "", "", "", ""

    # -- what the debugger calls

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._unsent += text
        return len(text)

    def flush(self) -> None:
        """Does nothing: `readline` sends the output."""

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Returns the next line that the user types. Waits for a terminal, and for another one if it disconnects."""
        text, newline, self._prompt = self._unsent.rpartition("\n")
        self._unsent = ""
        self._head = self._head or text + newline
        self._screen = (self._screen + text + newline)[-SCREEN:]
        self._send(text=text + newline)
        self._send(prompt=self._prompt)
        while True:
            message = self._next()
            if "line" in message:
                self._screen = f"{self._prompt}{message['line']}\n"
                return f"{message['line']}\n"

    def runs(self, *, steps: bool) -> None:
        """Sends the remaining output, as the rank continues; `steps`: it stops again after one step."""
        self._send(text=self._unsent)
        self._unsent = self._head = self._screen = ""
        if not steps:
            self._send(runs=True)

    def attended(self) -> bool:
        if self._terminal is not None and wait([self._terminal], 0):
            self._receive(self._terminal)  # notices that it has disconnected
        return self._terminal is not None

    def close(self) -> None:
        """Does nothing, since Python's `exit()` closes standard input, and the console must stay open."""

    def end(self) -> None:
        self._hang_up("")
        self._listener.close()

    # -- the terminal

    def _next(self) -> dict[str, Any]:
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        return message
                continue
            wanted = [self._listener, *([self._terminal] if self._terminal else [])]
            ready = wait(wanted)  # signal handlers run meanwhile; select(2) takes no descriptors above 1023
            if self._listener in ready:
                self._welcome()
            elif self._terminal is not None:
                self._receive(self._terminal)

    def _receive(self, terminal: socket.socket) -> None:
        try:
            data = terminal.recv(1 << 16)
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) > LONGEST:
            self._hang_up("")

    def _welcome(self) -> None:
        # Accepts a new terminal instead of the current one, and sends it the position and the last output
        newcomer, _ = self._listener.accept()
        if not _ours(newcomer):
            newcomer.close()
            return
        self._hang_up("another terminal has taken over")
        newcomer.settimeout(SEND_TIMEOUT)
        self._terminal = newcomer
        self._send(text=self._screen if self._screen == self._head else self._head + self._screen)
        self._send(prompt=self._prompt)

    def _send(self, **message: Any) -> None:
        if self._terminal is not None and (any(message.values()) or "prompt" in message):
            try:
                self._terminal.sendall(json.dumps(message).encode() + b"\n")
            except OSError:  # it has disconnected, or reads nothing
                self._terminal.close()
                self._terminal, self._received = None, b""

    def _hang_up(self, why: str) -> None:
        self._send(bye=why)
        if self._terminal is not None:
            self._terminal.close()
        self._terminal, self._received = None, b""


def private_folder() -> Path:
    """Makes a temporary folder of mode 0700 on this node. Returns the folder's path, short enough for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="launcher-"))
    if len(os.fsencode(folder)) <= _LONGEST_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="launcher-", dir="/tmp"))


def _ours(peer: socket.socket) -> bool:
    # Returns whether the process at the other end belongs to this user or to root (man 7 unix, SO_PEERCRED)
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] in (0, os.getuid())


# -- breakpoint() in a rank of a job: the ranks in debug.rank stop, so that a terminal can attach; others log a line and
# go on, until a collective in which they wait for a stopped rank. With debugging on, collectives have no timeout


FOREVER = 30 * 24 * 3600.0  # seconds; longer than any job
SOCKETS = "LAUNCHER_SOCKETS"  # variable with the folder that the agent has made for its ranks' sockets
# Functions of launcher.worker that call a workload or a program
CALLERS = ("_run_workload", "run_script", "run_module", "_run_code")
HERE = str(Path(__file__).parents[1])
FIRST_BREAKPOINT = "_first_breakpoint"  # function of user_script.py that loads this module at the first breakpoint()


class DebuggerQuit(errors.LauncherError):
    """The user ended the rank with `q` at the debugger's prompt."""


class Debugger(pdb.Pdb):
    """pdb that reads and writes through a `Console`, since a rank has no terminal. rank: this rank."""

    def __init__(self, console: Console) -> None:
        files: Any = console
        # SIGINT is a stop request in a training. Users do not want to step through runpy.
        super().__init__(stdin=files, stdout=files, nosigint=True, skip=["runpy"])
        self._console, self._steps = console, False
        self.rank = int(os.environ["RANK"])
        self._events = Events(current_attempt(), f"debug-{self.rank}")
        self.where = ""

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        sys.settrace(None)  # or a step that has led here would continue into these functions
        super().set_trace(frame or sys._getframe(1), **options)

    def interaction(self, frame: FrameType | None, *details: Any) -> None:
        """Handles a stop: reports the position, and prompts until the rank continues."""
        error = details[0] if details else None
        traceback = error.__traceback__ if isinstance(error, BaseException) else error
        self.where = _place(frame, traceback)
        hosts, node = hosts_in(os.environ), int(os.environ.get("NODE_RANK", "0"))
        host = (hosts[node] if node < len(hosts) else "") or os.uname().nodename
        self._events(Breakpoint(
            rank=self.rank, host=host, pid=os.getpid(), where=self.where, socket=self._console.path,
            job=os.environ.get("SLURM_JOB_ID"), post_mortem=traceback is not None,
        ))  # fmt: skip
        if not self._console.attended():
            what = "an exception" if traceback is not None else "breakpoint()"
            run = attempt.run.id if (attempt := current_attempt()) else "RUN"
            log_line(
                f"rank {self.rank} on {host} waits at {what} in {self.where}: "
                f"python -m launcher attach {run} --debug --rank {self.rank}"
            )
        if not self._steps:
            left = time_left(os.environ)
            ends = "" if left is None else f"; its job ends in {format_time(max(0, int(left.seconds)))}"
            self.message(f"rank {self.rank} on {host}, process {os.getpid()}{ends}")
        try:
            super().interaction(frame, *details)
        finally:
            self._events(Continued(rank=self.rank))
            self._steps = self.stoplineno != -1  # as bdb's set_continue leaves it
            self._console.runs(steps=self._steps or traceback is not None)  # after an exception the rank does not run

    def stop_here(self, frame: FrameType) -> bool:
        """Overrides bdb.Bdb: a step that returns from the user's code into launcher's continues the program."""
        if frame.f_code.co_name in CALLERS and frame.f_code.co_filename.startswith(HERE):
            self.set_continue()
            return False
        return super().stop_here(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Returns what pdb.Pdb.get_stack does, without the frames of launcher and torch above the workload."""
        stack, index = super().get_stack(f, t)
        callers = [place for place, (frame, _) in enumerate(stack[:-1]) if frame.f_code.co_name in CALLERS]
        top = callers[-1] + 1 if callers else 0
        return stack[top:], max(0, index - top)

    def do_run(self, arg: str) -> None:
        """run: not available in a rank."""
        self.error("a rank cannot be started again from here: q ends it")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact: not available, since it needs a terminal, which a rank lacks."""
        self.error("there is no interpreter here besides this prompt, which takes any Python statement")


_debugger: Debugger | None = None
_ranks: tuple[int, ...] = ()
_logged: set[tuple[str, int]] = set()  # (file, line) of breakpoints that were logged and passed


def install_arguments(plan: JobPlan) -> dict[str, Any]:
    """Returns the arguments of `install` in JSON types, so that an executed program can get them."""
    return {"ranks": list(plan.debug.ranks), "post_mortem": plan.debug.post_mortem}


def install(ranks: Sequence[int], post_mortem: bool = False) -> Watched:
    """In a rank: redirects breakpoint(), pdb.set_trace() and torch.distributed.breakpoint() to `attach --debug`.

    Leaves them alone if the rank has a terminal, or PYTHONBREAKPOINT is set. Other ranks log a line and continue.
    Returns a context manager in which the rank must run the user's code.
    """
    global _ranks
    _ranks = tuple(ranks)
    if "PYTHONBREAKPOINT" not in os.environ and not (sys.stdin is not None and sys.stdin.isatty()):
        sys.breakpointhook = pdb.set_trace = stop
        name = "torch.distributed.distributed_c10d"
        if name in sys.modules:
            _install_torch(sys.modules[name])
        elif _ranks:
            sys.meta_path.insert(0, _AfterImport(name))
    return Watched(post_mortem and int(os.environ["RANK"]) in _ranks)


def stop(*_: Any, header: str | None = None, **__: Any) -> None:
    """Replaces breakpoint() and pdb.set_trace(): opens the prompt, after `header`, or logs a line in other ranks."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == __name__ or frame.f_code.co_name == FIRST_BREAKPOINT:
        frame = frame.f_back or frame
    if int(os.environ["RANK"]) not in _ranks:
        _log_once(frame)
        return
    debugger = _debugger_of_rank()
    if header is not None:
        debugger.message(header)
    debugger.set_trace(frame)  # must be the last statement: the debugger stops at the next line that runs


def _install_torch(distributed_c10d: Any) -> None:
    import torch.distributed as dist

    if not _ranks:
        dist.breakpoint = lambda *_, **__: stop()
        return
    # For groups made after this without a timeout of their own; torch's default is half an hour.
    distributed_c10d.default_pg_timeout = timedelta(seconds=FOREVER)
    if distributed_c10d.default_pg_nccl_timeout is not None:
        distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=FOREVER)
    # torch's breakpoint would set the timeout of all groups to an hour, and read /dev/stdin.
    names = list(inspect.signature(dist.breakpoint).parameters)
    if "timeout_s" in names:  # the last parameter; torch 2.6 lacks it, and sets no timeout
        dist.breakpoint.__defaults__ = (*(dist.breakpoint.__defaults__ or ())[:-1], None)
    for name in ("_make_distributed_pdb", "_DistributedPdb"):  # torch's factory of debuggers; a class in older torch
        if hasattr(dist, name):
            setattr(dist, name, _debugger_of_rank)


class _AfterImport(importlib.abc.MetaPathFinder):
    # Calls `_install_torch` after a program has imported torch.distributed

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _install_torch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Watched(contextlib.AbstractContextManager[None]):
    """Context manager of the user's code: `q` ends it with DebuggerQuit, and post_mortem stops at an exception."""

    def __init__(self, post_mortem: bool) -> None:
        self._post_mortem = post_mortem

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, bdb.BdbQuit) and _debugger is not None:
            raise DebuggerQuit(f"it was ended at the debugger's prompt (q) in {_debugger.where}") from None
        if self._post_mortem and isinstance(error, Exception):
            debugger = _debugger_of_rank()
            debugger.message(f"{type(error).__name__}: {error}")
            debugger.reset()
            debugger.interaction(None, error if sys.version_info >= (3, 13) else traceback)


def _debugger_of_rank() -> Debugger:
    # Returns this rank's debugger: the same one for all stops, so that it keeps its breakpoints
    global _debugger
    if _debugger is None:
        _debugger = Debugger(Console(Path(os.environ[SOCKETS])))
    return _debugger


def _log_once(frame: FrameType) -> None:
    here = (frame.f_code.co_filename, frame.f_lineno)
    if here not in _logged:
        _logged.add(here)
        chosen = f"debug.rank={','.join(map(str, _ranks))}" if _ranks else "add debug.rank=0 to stop"
        log_line(f"rank {os.environ['RANK']} ignores breakpoint() in {_place(frame, None)} ({chosen})")


def _place(frame: FrameType | None, traceback: TracebackType | None) -> str:
    number = frame.f_lineno if frame is not None else 0
    while traceback is not None:
        frame, number, traceback = traceback.tb_frame, traceback.tb_lineno, traceback.tb_next
    if frame is None:
        return "?"
    if frame.f_globals.get("__name__") == "torch.distributed" and (caller := frame.f_back):  # its own breakpoint()
        frame, number = caller, caller.f_lineno
    path = Path(frame.f_code.co_filename)
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{number}"
