"""Starts the ranks of one agent as processes, polls, signals and kills them, and reaps them.

A rank is a fork of its agent, so that torch is loaded once per node. A fork is safe only from a process that has one
thread and no initialised GPU: a lock that another thread holds during the fork stays locked in the child for ever.
Otherwise each rank starts in a new interpreter, which takes as long as importing torch.

Only `reap`, `close`, and `start` while the kernel is out of processes, block. This module does not import torch.
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

START_TIMEOUT = 5.0  # seconds for which fork, open and pipe are retried
LONE = 0.5  # seconds to wait for other threads of the agent that are ending
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)  # what may be better in a moment
# Signals that an agent ignores at times. What it was itself started with ignored (nohup) stays so, as do those that
# Python ignores.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)

Run = Callable[[Placement], "Mapping[str, Any] | None"]


@dataclass(frozen=True)
class WorkerExit:
    """How one rank ended.

    Attributes:
        place: number of the rank among those of its agent.
        rank: global rank.
        pid: its process id.
        code: exit code; negative: the signal that killed it.
        returned: metrics that it reported; None: it did not report that its work is done.
        error: exception that it reported; None: it reported none.
        time: seconds since the epoch when the agent noticed the exit.
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
    """A rank whose process still exists after SIGKILL, or after the end of its round.

    Attributes:
        rank: global rank.
        pid: its process id.
        state: the state of the process (man 5 proc); D: uninterruptible sleep, on a device or a file server.
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
    """How to start a rank in a new interpreter; see `launcher.worker.main.fresh_command`.

    Attributes:
        command: program and arguments.
        descriptors: file descriptors that it inherits.
    """

    command: Sequence[str]
    descriptors: Sequence[int]


class StartError(Exception):
    """A rank could not be started. The ranks that had started are killed.

    Attributes:
        rank: the rank that failed.
        number: errno.
        words: text of the OSError, with its file.
        processes, files: limits of this process (`ulimit -u`, `ulimit -n`); -1: unlimited.
    """

    def __init__(self, rank: int, error: OSError) -> None:
        super().__init__(f"rank {rank} cannot be started: {error}")
        self.rank, self.number, self.words = rank, error.errno or 0, str(error)
        self.processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class WorkersStillThere(Exception):
    """Processes of the last round still exist, and may hold GPUs, memory and ports.

    Attributes:
        left: these ranks.
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
            logs: folder of the ranks' output files.
            fresh: returns how to start a rank in a new interpreter if a fork is unsafe; None: always fork.
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
        """Starts all ranks. They wait at the gate, until `open_gate`, before they use the store.

        Args:
            ranks: the ranks, by place.
            run: function that a rank calls in its process. It returns the rank's metrics.
            round_number: number of the round, from 0.
            close_in_child: descriptors of this process that ranks close.
            ignore: signals that ranks ignore from the start. All others have their default.

        Raises:
            WorkersStillThere: processes of an earlier round still exist.
            StartError: no process, memory or descriptor is left for one of them; none keeps running.
        """
        assert not self._workers, "the round before is not closed"
        if left := self.still_there():
            raise WorkersStillThere(left)
        self._seen, self._before = [], None
        rank = ranks[0].rank if ranks else 0
        try:
            run_files.make_folder(self._logs)
            self._before = _retry_shortage(orphans.children)
            fresh = self._fresh if _retry_shortage(self._cannot_fork) else None
            self._gate = _retry_shortage(os.pipe)
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
                descriptor = _retry_shortage(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))
                opened.callback(os.close, descriptor)
                return descriptor

            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
            out, err, error_file = (open_(path, writing) for path in names)
            out_copy, err_copy = (open_(path, os.O_RDONLY) for path in names[:2])
            report = _retry_shortage(lambda: memory_file.make(f"report-{placement.rank}"))
            opened.callback(os.close, report)
            agent = os.getpid()
            pid = _retry_shortage(_fork)
            if pid == 0:
                _run_rank(
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
        """Returns the ranks that have ended since the last call."""
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
        """Returns the process ids by place. That of an ended rank may belong to another process by now."""
        return [worker.pid for worker in self._workers]

    def forward_output(self) -> bool:
        """Copies what ranks have written since the last call, up to a bound, each line as `[RANK] ...`.

        Returns:
            Whether there is more.
        """
        return self._output is not None and self._output.forward()

    # -- end

    def signal(self, place: int, number: int) -> None:
        """Sends a signal to one rank, unless it has ended."""
        worker = self._workers[place]
        if worker.code is None:  # not reaped, so no other process can have its id
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to all ranks, and does not wait for their end."""
        for worker in self._workers:
            self.signal(worker.placement.place, signal.SIGKILL)

    def reap(self, timeout: float) -> list[int]:
        """Waits until all ranks have ended.

        Args:
            timeout: seconds.

        Returns:
            Process ids of ranks that have not ended: they hang in a device or a file server. See `still_there`.
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
        """Returns the ranks of earlier rounds whose processes still exist. They may hold GPUs, memory and ports."""
        self._left = [worker for worker in self._left if _exit_code(worker.pid) is None]
        return [LeftOver.of(worker.placement.rank, worker.pid) for worker in self._left]

    def close(self, timeout: float = 5.0) -> None:
        """Ends the round: kills ranks and their child processes, copies the rest of the output, removes error files.

        `still_there` returns the ranks that do not end in time.

        Args:
            timeout: seconds to wait for the ends of ranks.
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
    """Returns why a fork of this process is unsafe, as text; empty: it is safe."""
    if _uses_gpu():
        return "has initialised a GPU"
    if _threads() > 1:
        # Libraries with fork handlers (OpenBLAS in numpy) end their threads before a fork, and restart them on demand.
        # This trial fork leaves the threads of all other libraries.
        with contextlib.suppress(OSError):
            if (pid := _fork()) == 0:
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


# -- in the child


def _run_rank(
    placement: Placement, run: Run, fresh: Fresh | None, agent: int, *,
    keep: tuple[int, int, int, int, Path], mask: set[Any], ignore: Collection[signal.Signals],
    close: Sequence[int],
) -> NoReturn:  # fmt: skip
    """Runs a rank in the forked child: resets what it inherited from the agent, runs its work and exits."""
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
    """Replaces the agent's signal handlers by the defaults."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in ignore:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)) or number in _AGENTS:
            signal.signal(number, signal.SIG_DFL)


def _take_cpus(placement: Placement) -> None:
    """Binds this process to the rank's CPUs. If the job has lost them in the meantime, the rank runs unbound."""
    try:
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        told = f"rank {placement.rank} cannot be bound to the CPUs {ranges(placement.cpus)}, and runs unbound: {error}"
        print(f"launcher: {told}", file=sys.stderr, flush=True)


def _take_streams(out: int, err: int) -> None:
    """Redirects standard input to /dev/null, and the outputs to the rank's files."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)  # which is inherited by what it starts
    if nothing > 2:
        os.close(nothing)
    # Line buffering keeps the output of a rank that is killed.
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


def _retry_shortage(call: Callable[[], Any]) -> Any:
    """Returns the result of a call. Retries it for START_TIMEOUT while processes, memory or descriptors are used up.

    Raises:
        OSError: the shortage lasted, or it is another error.
    """
    give_up, pause = time.monotonic() + START_TIMEOUT, 0.01
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in _SHORTAGES or time.monotonic() + pause >= give_up:
                raise
        time.sleep(pause)
        pause = min(0.5, 2 * pause)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[Any]]:
    """Blocks all signals, so that a forked child gets none before it has reset its handlers; yields the old mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_code(pid: int) -> int | None:
    """Reaps a child if it has ended. Returns its exit code (negative: the signal); None: it still runs."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else has waited for it
        return errors.FAILED
    return os.waitstatus_to_exitcode(status) if ended else None
