"""breakpoint() in a rank of a job: it stops where a terminal can come to it, or goes on and says so.

Ranks stop that debug.rank names. The others go on, until they wait for one of those in a collective, for which they
have all the time that the job has. `attach --debug` is the terminal; see `console` for what goes between the two.
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
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Breakpoint, Continued
from launcher.runs.time_left import time_left
from launcher.worker.debug_console import Console

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan

FOREVER = 30 * 24 * 3600.0  # seconds; longer than any job
SOCKETS = "LAUNCHER_SOCKETS"  # the agent's folder for sockets of its ranks
CALLERS = (
    "_run_workload",
    "run_script",
    "run_module",
    "_run_code",
)  # of a workload or a program; see `launcher.worker`
HERE = str(Path(__file__).parents[1])
PASSES_ON = "_first_breakpoint"  # see `script`


class DebuggerQuit(errors.LauncherError):
    """The user ended the rank at the prompt."""


class Debugger(pdb.Pdb):
    """pdb, with a console in the place of the terminal that a rank does not have."""

    def __init__(self, console: Console) -> None:
        files: Any = console
        # SIGINT is a stop in a training; nobody wants to step through what runs a module.
        super().__init__(stdin=files, stdout=files, nosigint=True, skip=["runpy"])
        self._console, self._steps = console, False
        self.rank = int(os.environ["RANK"])
        self._events = Events(current_attempt(), f"debug-{self.rank}")
        self._where = ""
        console.completer = self._complete

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        """Stops in a frame, that of the caller by default."""
        sys.settrace(None)  # or what is called here would be stepped into, where a step has led to this
        super().set_trace(frame or sys._getframe(1), **options)

    def interaction(self, frame: FrameType | None, *details: Any) -> None:
        """A stop: says where, and is at its prompt until the rank goes on."""
        told = details[0] if details else None
        traceback = told.__traceback__ if isinstance(told, BaseException) else told
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
            _say(
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
            self._console.runs(steps=self._steps or traceback is not None)  # after an exception nothing goes on

    def stop_here(self, frame: FrameType) -> bool:
        """As bdb's; a step out of what the user sees is the last one."""
        if frame.f_code.co_name in CALLERS and frame.f_code.co_filename.startswith(HERE):
            self.set_continue()
            return False
        return super().stop_here(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """As pdb's, without the launcher's and torch's frames above the workload."""
        stack, index = super().get_stack(f, t)
        callers = [place for place, (frame, _) in enumerate(stack[:-1]) if frame.f_code.co_name in CALLERS]
        top = callers[-1] + 1 if callers else 0
        return stack[top:], max(0, index - top)

    def quit_cause(self) -> DebuggerQuit:
        """What a rank ends with whose user has typed `q`."""
        return DebuggerQuit(f"it was ended at the debugger's prompt (q) in {self._where}")

    def do_run(self, arg: str) -> None:
        """run
        A rank cannot be started again from here."""
        self.error("a rank cannot be started again from here: q ends it")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """interact
        The interpreter that this starts elsewhere would want a terminal of the rank's own."""
        self.error("there is no interpreter here besides this prompt, which takes any Python statement")

    def _complete(self, word: str, line: str, begin: int, end: int) -> list[str]:
        """As cmd.Cmd.complete does it with readline's state, which is at the other end here."""
        command = self.parseline(line)[0] if begin > 0 else None
        chosen: Callable[..., list[str]] = self.completenames
        if command is not None:
            chosen = getattr(self, f"complete_{command}", self.completedefault)
        elif begin > 0:
            chosen = self.completedefault
        try:
            return [str(each) for each in chosen(word, line, begin, end) or []][:200]
        except Exception:  # evaluating what is half typed may raise anything
            return []


_debugger: Debugger | None = None
_ranks: tuple[int, ...] = ()
_passed: set[tuple[str, int]] = set()


def wanted(plan: JobPlan) -> dict[str, Any]:
    """What `install` is told, in JSON's types: for a rank that becomes another program."""
    return {"ranks": list(plan.debug.ranks), "post_mortem": plan.debug.post_mortem}


def install(ranks: Sequence[int], post_mortem: bool = False) -> Watched:
    """In a rank: breakpoint(), pdb.set_trace() and torch.distributed.breakpoint() are for `attach --debug`.

    Not where somebody sits at the rank's own terminal, and not where PYTHONBREAKPOINT names another debugger.

    Args:
        ranks: those that stop; empty: breakpoints are passed over.
        post_mortem: they also stop where an exception is raised that nobody catches.

    Returns:
        For what is run.
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
    """Takes the place of breakpoint() and pdb.set_trace()."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") == __name__ or frame.f_code.co_name == PASSES_ON:
        frame = frame.f_back or frame
    if int(os.environ["RANK"]) not in _ranks:
        _pass(frame)
        return
    debugger = _the()
    if header is not None:
        debugger.message(header)
    debugger.set_trace(frame)  # nothing may follow: it stops at the next line that is run


def _install_torch(distributed_c10d: Any) -> None:
    # Lazily: torch takes a second, and a program may do without it
    import torch.distributed as dist

    if not _ranks:
        dist.breakpoint = lambda *_, **__: stop()
        return
    # Groups made from now on without a time of their own: torch's default is half an hour.
    distributed_c10d.default_pg_timeout = timedelta(seconds=FOREVER)
    if distributed_c10d.default_pg_nccl_timeout is not None:
        distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=FOREVER)
    # It would set the time of all groups to an hour, and read /dev/stdin.
    names = list(inspect.signature(dist.breakpoint).parameters)
    if "timeout_s" in names:  # the last one; torch 2.6 has none, and sets no time
        dist.breakpoint.__defaults__ = (*(dist.breakpoint.__defaults__ or ())[:-1], None)
    for name in ("_make_distributed_pdb", "_DistributedPdb"):  # what makes its debugger: a function; before, the class
        if hasattr(dist, name):
            setattr(dist, name, _the)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Installs what concerns torch when a program has imported that."""

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
    """For all that a rank runs: `q` ends it with a cause, and with debug.post_mortem an exception stops it first."""

    def __init__(self, post_mortem: bool) -> None:
        self._post_mortem = post_mortem

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        """
        Raises:
            DebuggerQuit: `q` was typed.
        """
        if isinstance(error, bdb.BdbQuit) and _debugger is not None:
            raise _debugger.quit_cause() from None
        if self._post_mortem and isinstance(error, Exception):
            debugger = _the()
            debugger.message(f"{type(error).__name__}: {error}")
            debugger.reset()
            debugger.interaction(None, error if sys.version_info >= (3, 13) else traceback)


def _the() -> Debugger:
    """This rank's debugger, which keeps its breakpoints from one stop to the next."""
    global _debugger
    if _debugger is None:
        _debugger = Debugger(Console(Path(os.environ[SOCKETS])))
    return _debugger


def _pass(frame: FrameType) -> None:
    """Says, once for each place, that a breakpoint is passed over."""
    here = (frame.f_code.co_filename, frame.f_lineno)
    if here not in _passed:
        _passed.add(here)
        chosen = f"debug.rank={','.join(map(str, _ranks))}" if _ranks else "add debug.rank=0 to stop"
        _say(f"rank {os.environ['RANK']} passes over breakpoint() in {_place(frame, None)} ({chosen})")


def _place(frame: FrameType | None, traceback: TracebackType | None) -> str:
    """`train.py:12`, with as much of the path as is not the working directory's."""
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
    """This rank's node, as the run calls it."""
    hosts, node = os.environ.get("LAUNCHER_HOSTS", "").split(","), int(os.environ.get("NODE_RANK", "0"))
    return (hosts[node] if node < len(hosts) else "") or os.uname().nodename


def _name() -> str:
    attempt = current_attempt()
    return attempt.run.id if attempt else "RUN"


def _left() -> str:
    """How long the job may still take; nothing suspends that."""
    left = time_left(os.environ)
    return "" if left is None else f"; its job ends in {format_time(max(0, int(left.seconds)))}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"launcher: {text}", file=sys.stderr, flush=True)
