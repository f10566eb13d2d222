"""breakpoint() in a rank of a job: the rank stops so that a terminal can attach, or logs a line and continues.

The ranks in debug.rank stop. The other ranks continue until a collective in which they wait for a stopped rank. With
debugging on, collectives have no timeout. The terminal is `attach --debug`; debug_console.py has the protocol.
"""

from __future__ import annotations

import bdb
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import pdb
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from launcher import errors
from launcher.formatting import format_time
from launcher.log_line import log_line
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Breakpoint, Continued
from launcher.runs.time_left import time_left
from launcher.schedulers.topology import hosts_in
from launcher.worker.debug_console import Console

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan

FOREVER = 30 * 24 * 3600.0  # seconds; longer than any job
SOCKETS = "LAUNCHER_SOCKETS"  # variable with the folder that the agent has made for its ranks' sockets
CALLERS = (
    "_run_workload",
    "run_script",
    "run_module",
    "_run_code",
)  # functions of launcher.worker that call a workload or a program
HERE = str(Path(__file__).parents[1])
FIRST_BREAKPOINT = "_first_breakpoint"  # function of script.py that loads this module at the first breakpoint()


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
        self._where = ""
        console.completer = self._complete

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        """Stops at the next line of a frame, by default the caller's."""
        sys.settrace(None)  # or a step that has led here would continue into these functions
        super().set_trace(frame or sys._getframe(1), **options)

    def interaction(self, frame: FrameType | None, *details: Any) -> None:
        """Handles a stop: reports the position, and prompts until the rank continues."""
        error = details[0] if details else None
        traceback = error.__traceback__ if isinstance(error, BaseException) else error
        self._where = _place(frame, traceback)
        host = _host()
        self._events(
            Breakpoint(
                rank=self.rank, host=host, pid=os.getpid(), where=self._where, socket=self._console.path,
                job=os.environ.get("SLURM_JOB_ID"), post_mortem=traceback is not None,
            )
        )  # fmt: skip
        if not self._console.attended():
            what = "an exception" if traceback is not None else "breakpoint()"
            log_line(
                f"rank {self.rank} on {host} waits at {what} in {self._where}: "
                f"python -m launcher attach {_name()} --debug --rank {self.rank}"
            )
        if not self._steps:
            self.message(f"rank {self.rank} on {host}, process {os.getpid()}{_left()}")
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

    def quit_cause(self) -> DebuggerQuit:
        """Returns the error with which the rank ends after the user has typed `q`."""
        return DebuggerQuit(f"it was ended at the debugger's prompt (q) in {self._where}")

    def do_run(self, arg: str) -> None:
        """run
        A rank cannot be started again from here."""
        self.error("a rank cannot be started again from here: q ends it")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact
        Not available: the interpreter that pdb starts for it needs a terminal, which a rank lacks."""
        self.error("there is no interpreter here besides this prompt, which takes any Python statement")

    def _complete(self, word: str, line: str, begin: int, end: int) -> list[str]:
        command = self.parseline(line)[0] if begin > 0 else None
        chosen: Callable[..., list[str]] = self.completenames
        if command is not None:
            chosen = getattr(self, f"complete_{command}", self.completedefault)
        elif begin > 0:
            chosen = self.completedefault
        try:
            return [str(each) for each in chosen(word, line, begin, end) or []][:200]
        except Exception:  # evaluating an incomplete expression may raise anything
            return []


_debugger: Debugger | None = None
_ranks: tuple[int, ...] = ()
_logged: set[tuple[str, int]] = set()  # (file, line) of breakpoints that were logged and passed


def install_arguments(plan: JobPlan) -> dict[str, Any]:
    """Returns the arguments of `install` in JSON types, so that an executed program can get them."""
    return {"ranks": list(plan.debug.ranks), "post_mortem": plan.debug.post_mortem}


def install(ranks: Sequence[int], post_mortem: bool = False) -> Watched:
    """In a rank: redirects breakpoint(), pdb.set_trace() and torch.distributed.breakpoint() to `attach --debug`.

    Leaves them alone if the rank has a terminal, or PYTHONBREAKPOINT is set.

    ranks: the ranks that stop; the others log a line and continue.
    post_mortem: whether these ranks also stop at an uncaught exception.
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
    """Replaces breakpoint() and pdb.set_trace(): opens the debugger's prompt at the caller's next line.

    A rank that debug.rank does not list logs a line instead, and continues.

    header: text to show before the prompt; None: none. All other arguments are ignored.
    """
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
    # Lazily: torch takes a second, and a program may do without it
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
    """Calls `_install_torch` after a program has imported torch.distributed."""

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


class Watched:
    """Context manager around the user's code: `q` at the prompt ends it with an error.

    With debug.post_mortem the rank also stops, at the debugger's prompt, at an exception that leaves the code.
    """

    def __init__(self, post_mortem: bool) -> None:
        self._post_mortem = post_mortem

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Raises DebuggerQuit: the user has typed `q`."""
        if isinstance(error, bdb.BdbQuit) and _debugger is not None:
            raise _debugger.quit_cause() from None
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
        log_line(f"rank {os.environ['RANK']} passes over breakpoint() in {_place(frame, None)} ({chosen})")


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


def _host() -> str:
    hosts, node = hosts_in(os.environ), int(os.environ.get("NODE_RANK", "0"))
    return (hosts[node] if node < len(hosts) else "") or os.uname().nodename


def _name() -> str:
    attempt = current_attempt()
    return attempt.run.id if attempt else "RUN"


def _left() -> str:
    left = time_left(os.environ)
    return "" if left is None else f"; its job ends in {format_time(max(0, int(left.seconds)))}"
