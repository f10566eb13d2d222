"""The ranks of one agent as processes: started, watched, told, killed, and waited for until they are really gone.

A rank is a fork of its agent, so that torch is loaded once per node. A fork is safe only from a process with one thread
and without a GPU in use: locks that another thread held at that moment stay locked in the fork for ever. Where there is
more, a rank is started in an interpreter of its own, which takes as long as to import torch.

Nothing here waits, but for `reap`, `close`, and `start` where the kernel has no process to give. torch is not imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher import errors
from launcher.agent.forks import garbage_kept
from launcher.agent.logs import log_name
from launcher.agent.output import Forwarder
from launcher.files import memory_file, run_files
from launcher.formatting import ranges
from launcher.log_line import log_line
from launcher.processes import orphans
from launcher.rendezvous.rank_environment import (
    Placement,
    environment_of,
    place_variables,
    placements,
)
from launcher.worker import handover, hangs
from launcher.worker.handover import WorkerError

__all__ = [
    "Fresh", "LeftOver", "Placement", "StartError", "WorkerError", "WorkerExit", "WorkerGroup", "WorkersStillThere",
    "environment_of", "place_variables", "placements",
]  # fmt: skip

START_TIMEOUT = 5.0  # seconds in which a process, its memory or its descriptors must be had
LONE = 0.5  # seconds in which other threads of the agent have ended, if they are about to
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # what may be better in a moment
# Signals that an agent ignores at times. What it was itself started with ignored (nohup) stays so, as do those that
# Python ignores.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)

Run = Callable[[Placement], "Mapping[str, Any] | None"]


@dataclass(frozen=True)
class WorkerExit:
    """How one rank ended.

    Attributes:
        place: among its agent's ranks.
        rank: its number in the job.
        pid: process id that it had.
        code: exit code; negative: the signal that killed it.
        returned: the metrics that its work came to; None: it did not say that its work was done.
        error: how it failed, in its own words; None: it left none.
        time: seconds since the epoch when that was seen.
    """

    place: int
    rank: int
    pid: int
    code: int
    returned: dict[str, Any] | None
    error: WorkerError | None
    time: float


@dataclass(frozen=True)
class LeftOver:
    """A rank that was killed, or whose round is over, and whose process is not gone.

    Attributes:
        rank: its number in the job.
        pid: its process.
        state: the kernel's letter for the state of that (man 5 proc); D: it waits for a device or a file server.
    """

    rank: int
    pid: int
    state: str

    @classmethod
    def of(cls, rank: int, pid: int) -> LeftOver:
        return cls(rank, pid, hangs.state(pid))

    def __str__(self) -> str:
        why = "waits for a device or a file server" if self.state == "D" else "does not end"
        return f"rank {self.rank} (process {self.pid}, state {self.state or '?'}: it {why})"


@dataclass(frozen=True)
class Fresh:
    """How a rank is started in an interpreter of its own; see `launcher.worker.main.fresh_command`.

    Attributes:
        command: what to execute.
        descriptors: what it is to inherit.
    """

    command: Sequence[str]
    descriptors: Sequence[int]


class StartError(Exception):
    """A rank could not be started; those that had been are killed.

    Attributes:
        rank: the one that could not.
        number: what the kernel said (errno).
        words: the same as text, with the file that it is about.
        processes, files: limits of this process (`ulimit -u`, `ulimit -n`); -1: there is none.
    """

    def __init__(self, rank: int, error: OSError) -> None:
        super().__init__(f"rank {rank} cannot be started: {error}")
        self.rank, self.number, self.words = rank, error.errno or 0, str(error)
        self.processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class WorkersStillThere(Exception):
    """Ranks of the round before are still there, and may hold GPUs, memory and ports.

    Attributes:
        left: which.
    """

    def __init__(self, left: Sequence[LeftOver]) -> None:
        super().__init__(f"killed, and still there: {', '.join(map(str, left))}")
        self.left = tuple(left)


@dataclass
class _Worker:
    """A rank that was started."""

    placement: Placement
    pid: int
    report: int
    error_file: Path
    code: int | None = None


class WorkerGroup:
    """The ranks of one agent, from one round to the next.

        group.start(placements, run); group.open_gate()
        group.poll()                      # whenever a child has ended
        group.kill(); group.reap(5.0); group.close()

    After `close` it can be started again.
    """

    def __init__(self, logs: Path, *, fresh: Callable[[Placement], Fresh] | None = None) -> None:
        """
        Args:
            logs: folder for what ranks write.
            fresh: how a rank is started where this process cannot be forked safely; None: it is forked all the same.
        """
        self._logs, self._fresh = logs, fresh
        self._workers: list[_Worker] = []
        self._seen: list[WorkerExit] = []  # which `poll` has yet to return
        self._left: list[_Worker] = []  # of earlier rounds
        self._gate: tuple[int, int] | None = None  # the ends of its pipe
        self._output: Forwarder | None = None
        self._before: set[int] | None = None  # children of this process that are none of ours; None: not known
        self._warned = False

    # -- start

    def start(
        self, ranks: Sequence[Placement], run: Run, *, round_number: int = 0,
        close_in_child: Sequence[int] = (), ignore: Collection[signal.Signals] = (),
    ) -> None:  # fmt: skip
        """Starts all ranks. They stop at the gate before they use what only comes with `open_gate`.

        Args:
            ranks: which, by place.
            run: what a rank calls in its own process; what that returns are its metrics.
            round_number: how often ranks of this attempt were started before.
            close_in_child: descriptors of this process that ranks must not keep.
            ignore: signals that ranks begin with ignored. All others have their default.

        Raises:
            WorkersStillThere: ranks of an earlier round are not gone.
            StartError: there is no process, memory or descriptor for one of them; none is left running.
        """
        assert not self._workers, "the round before is not closed"
        if left := self.still_there():
            raise WorkersStillThere(left)
        self._seen, self._before = [], None
        rank = ranks[0].rank if ranks else 0
        try:
            run_files.make_folder(self._logs)
            self._before = _patiently(orphans.children)
            fresh = self._fresh if _patiently(self._cannot_fork) else None
            self._gate = _patiently(os.pipe)
            self._output = Forwarder()
            for stream in (sys.stdout, sys.stderr):  # what is in their buffers would be written by every fork
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            with garbage_kept(), _signals_blocked() as before:
                for placement in ranks:
                    rank = placement.rank
                    self._start(placement, run, fresh, round_number, close_in_child, ignore, before)
        except OSError as error:
            failed = StartError(rank, error)
            self.close()
            raise failed from error

    def _start(
        self, placement: Placement, run: Run, fresh: Callable[[Placement], Fresh] | None, round_number: int,
        close_in_child: Sequence[int], ignore: Collection[signal.Signals], mask: set[Any],
    ) -> None:  # fmt: skip
        assert self._gate is not None
        assert self._output is not None
        names = [self._logs / log_name(placement.rank, round_number, kind) for kind in ("out", "err", "error.json")]
        with contextlib.ExitStack() as opened:  # what is open when something fails

            def open_(path: Path, flags: int) -> int:
                descriptor = _patiently(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))
                opened.callback(os.close, descriptor)
                return descriptor

            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
            out, err, error_file = (open_(path, writing) for path in names)
            out_copy, err_copy = (open_(path, os.O_RDONLY) for path in names[:2])
            report = _patiently(lambda: memory_file.make(f"report-{placement.rank}"))
            opened.callback(os.close, report)
            agent = os.getpid()
            pid = _patiently(_fork)
            if pid == 0:
                _be_rank(
                    placement, run, fresh and fresh(placement), agent,
                    keep=(out, err, report, self._gate[0], names[2]), mask=mask, ignore=ignore,
                    close=[
                        *close_in_child, self._gate[1], error_file, out_copy, err_copy, *self._output.descriptors(),
                        *(worker.report for worker in self._workers),
                    ],
                )  # fmt: skip
            self._workers.append(_Worker(placement, pid, report, names[2]))
            opened.pop_all()
            for descriptor in (out, err, error_file):
                os.close(descriptor)
            self._output.add(placement.rank, out_copy, err_copy)

    def _cannot_fork(self) -> bool:
        """Whether a fork of this process might hang or fail; says so once."""
        if self._fresh is None or not (why := unsafe_to_fork()):
            return False
        if not self._warned:
            self._warned = True
            log_line(f"this agent {why}: each rank is started in an interpreter of its own, which takes time")
        return True

    def open_gate(self) -> None:
        """Lets the ranks of this round use the store, now and later."""
        if self._gate is not None and self._gate[1] >= 0:
            with contextlib.suppress(BrokenPipeError):  # all have ended
                os.write(self._gate[1], b"!")  # which nobody takes out, so that every rank sees it
            os.close(self._gate[1])
            self._gate = (self._gate[0], -1)

    # -- watch

    def poll(self) -> list[WorkerExit]:
        """The ranks that have ended since the last call."""
        self._collect()
        seen, self._seen = self._seen, []
        return seen

    def _collect(self) -> None:
        for worker in self._workers:
            if worker.code is None and (code := _exit_code(worker.pid)) is not None:
                worker.code = code
                report = handover.read_report(worker.report)
                error = report.error
                if error is None and report.returned is None and code:
                    error = handover.read_error_file(worker.error_file)
                placement = worker.placement
                self._seen.append(WorkerExit(
                    placement.place, placement.rank, worker.pid, code, report.returned, error, time.time()
                ))  # fmt: skip

    def pids(self) -> list[int]:
        """By place, also of those that have ended: by then another process may have the number."""
        return [worker.pid for worker in self._workers]

    def forward_output(self) -> bool:
        """Copies what ranks have written since the last call, up to a bound, each line as `[RANK] ...`.

        Returns:
            Whether there is more.
        """
        return self._output is not None and self._output.forward()

    # -- end

    def signal(self, place: int, number: int) -> None:
        """Sends a signal to one rank; to one that has ended, nothing."""
        worker = self._workers[place]
        if worker.code is None:  # nobody has waited for it, so its number is no other process's
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def kill(self) -> None:
        """Kills all ranks (SIGKILL), without waiting for their end."""
        for worker in self._workers:
            self.signal(worker.placement.place, signal.SIGKILL)

    def reap(self, timeout: float) -> list[int]:
        """Waits until all ranks have ended.

        Args:
            timeout: seconds.

        Returns:
            Process ids of those that have not: they wait for a device or a file server. See `still_there`.
        """
        give_up, pause = time.monotonic() + timeout, 0.001
        while True:
            self._collect()
            left = [worker.pid for worker in self._workers if worker.code is None]
            if not left or time.monotonic() >= give_up:
                return left
            time.sleep(pause)
            pause = min(0.02, 2 * pause)

    def still_there(self) -> list[LeftOver]:
        """The ranks of earlier rounds whose processes are not gone: what they hold is not free."""
        self._left = [worker for worker in self._left if _exit_code(worker.pid) is None]
        return [LeftOver.of(worker.placement.rank, worker.pid) for worker in self._left]

    def close(self, timeout: float = 5.0) -> None:
        """Ends the round: ranks and what they have started are killed, all output is copied, files of ours are removed.

        Ranks that are not gone even so are remembered; see `still_there`.

        Args:
            timeout: seconds in which ranks that still run have ended.
        """
        self.kill()
        self.reap(timeout)
        self._left += [worker for worker in self._workers if worker.code is None]
        if self._before is not None:
            orphans.kill(self._before | {worker.pid for worker in self._left})
        if self._output is not None:
            self._output.finish()
            self._output = None
        for worker in self._workers:
            os.close(worker.report)
            worker.error_file.unlink(missing_ok=True)
        for end in self._gate or ():
            if end >= 0:
                os.close(end)
        self._gate, self._workers = None, []


# -- whether a fork is safe


def unsafe_to_fork() -> str:
    """What speaks against a fork of this process, in words; empty: nothing."""
    if _uses_gpu():
        return "has initialised a GPU"
    if _threads() > 1:
        # Libraries that know of forks (OpenBLAS, which numpy brings) end their threads before one, and start them anew
        # when they are needed: this one is to show which threads remain.
        with contextlib.suppress(OSError):
            if (pid := _fork()) == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    give_up = time.monotonic() + LONE
    while (threads := _threads()) > 1 and time.monotonic() < give_up:
        time.sleep(0.005)
    return f"has {threads} threads" if threads > 1 else ""


def _threads() -> int:
    """Threads of this process, those that Python knows nothing of as well."""
    with os.scandir("/proc/self/task") as threads:
        return sum(1 for _ in threads)


def _uses_gpu() -> bool:
    """Whether CUDA or ROCm has opened its devices. Looking at them (nvidia-smi's library) does not open these."""
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # the one that reads this folder
                if os.readlink(entry.path) in ("/dev/nvidia-uvm", "/dev/kfd"):
                    return True
    return False


# -- in the child


def _be_rank(
    placement: Placement, run: Run, fresh: Fresh | None, agent: int, *,
    keep: tuple[int, int, int, int, Path], mask: set[Any], ignore: Collection[signal.Signals],
    close: Sequence[int],
) -> NoReturn:  # fmt: skip
    """All that happens in a rank's process: what it has from its agent is put off, and its work is done."""
    code = errors.FAILED
    try:
        orphans.die_with_parent(agent)
        _reset_signals(ignore)
        out, err, report, gate, error_file = keep
        _take_streams(out, err)
        for descriptor in {*close, out, err} - {0, 1, 2}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        _take_cpus(placement)
        os.environ.update(placement.environment)
        os.environ.update({
            "TORCHELASTIC_ERROR_FILE": str(error_file), handover.GATE: str(gate), handover.REPORT: str(report)
        })  # fmt: skip
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if fresh is not None:
            for descriptor in (gate, report, *fresh.descriptors):
                os.set_inheritable(descriptor, True)
            os.execvpe(fresh.command[0], list(fresh.command), os.environ)  # noqa: S606  a list of words needs no shell
        handover.begin_process()
        code = handover.run_and_report(partial(run, placement), report)
    except BaseException:
        traceback.print_exc()
    finally:
        handover.end_process(code)
    raise AssertionError("it has ended")


def _reset_signals(ignore: Collection[signal.Signals]) -> None:
    """The agent's handlers are not this process's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in ignore:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)) or number in _AGENTS:
            signal.signal(number, signal.SIG_DFL)


def _take_cpus(placement: Placement) -> None:
    """Stays on its own CPUs from here on. If they were taken from the job in the meantime, it runs on what is left."""
    try:
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        told = f"rank {placement.rank} cannot be bound to the CPUs {ranges(placement.cpus)}, and runs unbound: {error}"
        print(f"launcher: {told}", file=sys.stderr, flush=True)


def _take_streams(out: int, err: int) -> None:
    """Its standard input is empty, its output goes to its files."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)  # which is inherited by what it starts
    if nothing > 2:
        os.close(nothing)
    # Line by line, so that a rank that is killed has left all that it has said.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


# -- small


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python warns where there are threads; see `unsafe_to_fork`
        return os.fork()


def _patiently(call: Callable[[], Any]) -> Any:
    """What the call returns; it is tried again for a while where the kernel has nothing to give at the moment.

    Raises:
        OSError: the kernel had nothing to give all the time, or it is another error.
    """
    give_up, pause = time.monotonic() + START_TIMEOUT, 0.01
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in _PASSING or time.monotonic() + pause >= give_up:
                raise
        time.sleep(pause)
        pause = min(0.5, 2 * pause)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[Any]]:
    """No signal comes in between a fork and the moment at which it has handlers of its own; gives the mask before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_code(pid: int) -> int | None:
    """The exit code of a child that has ended (negative: the signal), which is gone then; None: it has not."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else has waited for it
        return errors.FAILED
    return os.waitstatus_to_exitcode(status) if ended else None
