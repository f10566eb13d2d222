"""Starts the ranks of one agent as processes, polls, signals and kills them, and reaps them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher import errors, processes
from launcher.agent.output import Forwarder, log_name
from launcher.files import run_files
from launcher.formatting import log_line, ranges
from launcher.rendezvous.rounds import Placement
from launcher.worker import hangs, rank_report
from launcher.worker.rank_report import WorkerError

# Signals that an agent ignores at times. Signals that were ignored when the agent started (nohup), or that Python
# ignores, stay ignored in ranks.
_AGENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)

Run = Callable[[Placement], "Mapping[str, Any] | None"]


@dataclass(frozen=True)
class Fresh:
    """How to start a rank in a new interpreter; see `launcher.worker.main.fresh_command`."""

    command: Sequence[str]  # argv of the interpreter
    descriptors: Sequence[int]  # file descriptors that the interpreter inherits


def run_child(
    placement: Placement, run: Run, fresh: Fresh | None, agent: int, *,
    keep: tuple[int, int, int, int, Path], mask: set[Any], ignore: Collection[signal.Signals],
    close: Sequence[int],
) -> NoReturn:  # fmt: skip
    """Runs a rank in the forked child (`fresh`: in a new interpreter), and exits with the rank's exit code.

    agent: process id of the agent, with which the rank dies. keep: descriptors for stdout, stderr, the report and the
    gate, and the path of the error file.
    """
    code = errors.FAILED
    try:
        processes.die_with_parent(agent)
        _reset_signals(ignore)
        out, err, report, gate, error_file = keep
        take_streams(out, err)
        for descriptor in {*close, out, err} - {0, 1, 2}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        processes.restore_limit()  # now that the agent's own files, which may be more, are closed
        _take_cpus(placement)
        os.environ.update(placement.environment)
        os.environ.update({
            "TORCHELASTIC_ERROR_FILE": str(error_file), rank_report.GATE: str(gate), rank_report.REPORT: str(report)
        })  # fmt: skip
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if fresh is not None:
            for descriptor in (gate, report, *fresh.descriptors):
                os.set_inheritable(descriptor, True)
            os.execvpe(fresh.command[0], list(fresh.command), os.environ)  # noqa: S606  an argv list needs no shell
        rank_report.begin_process()
        code = rank_report.run_and_report(partial(run, placement), report)
    except BaseException:
        traceback.print_exc()
    finally:
        rank_report.end_process(code)
    raise AssertionError("it has ended")


def _reset_signals(ignore: Collection[signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in ignore:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)) or number in _AGENTS:
            signal.signal(number, signal.SIG_DFL)


def _take_cpus(placement: Placement) -> None:
    # If the job has lost them in the meantime, the rank runs unbound
    try:
        if placement.cpus:
            os.sched_setaffinity(0, placement.cpus)
    except OSError as error:
        who = f"rank {placement.rank}"
        problem = f"{who} cannot be bound to the CPUs {ranges(placement.cpus)}, and runs unbound: {error}"
        print(f"launcher: {problem}", file=sys.stderr, flush=True)


def take_streams(out: int, err: int) -> None:
    """Makes two files the output and the errors of this process, which reads nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, number)  # makes it inheritable by child processes
    if nothing > 2:
        os.close(nothing)
    # Line buffering keeps the output of a rank that is killed.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


# -- The ranks of an agent
#
# A rank is a fork of its agent, so that torch is loaded once per node. A fork is safe only from a process that has one
# thread and no initialised GPU: a lock that another thread holds during the fork stays locked in the child for ever.
# Otherwise each rank starts in a new interpreter, which takes as long as importing torch.
#
# Only `reap` and `close` block, and `start` while no process, memory or file descriptor is left. This module does not
# import torch.


@dataclass(frozen=True)
class WorkerExit:
    place: int  # index of the rank among the ranks of its agent, from 0
    rank: int
    pid: int
    code: int  # exit code; negative: the signal that killed it
    returned: dict[str, Any] | None  # metrics that it reported; None: it did not report that its work is done
    error: WorkerError | None  # error that it reported or printed; None: it did neither
    time: float  # when the agent noticed the exit, in seconds since the epoch


@dataclass(frozen=True)
class LeftOver:
    """A rank with a process that still exists after SIGKILL, or after the end of its round."""

    rank: int
    pid: int
    state: str  # state letter of the process (man 5 proc); D: uninterruptible sleep, on a device or a file server

    @classmethod
    def of(cls, rank: int, pid: int) -> LeftOver:
        return cls(rank, pid, hangs.state(pid))

    def __str__(self) -> str:
        why = "waits for a device or a file server" if self.state == "D" else "does not end"
        return f"rank {self.rank} (process {self.pid}, state {self.state or '?'}: it {why})"


class StartError(Exception):
    """A rank could not be started; the ranks that had started are killed. number, message: of the OSError.

    processes, files: this process's limits of processes and open files (`ulimit -u`, `ulimit -n`); -1: unlimited.
    """

    def __init__(self, rank: int, error: OSError) -> None:
        super().__init__(f"rank {rank} cannot be started: {error}")
        self.rank, self.number, self.message = rank, error.errno or 0, str(error)
        self.processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class WorkersStillThere(Exception):
    """Ranks of an earlier round still have processes, which may hold GPUs, memory and ports. left: the ranks."""

    def __init__(self, left: Sequence[LeftOver]) -> None:
        super().__init__(f"killed, and still there: {', '.join(map(str, left))}")
        self.left = tuple(left)


@dataclass
class _Worker:
    placement: Placement
    pid: int
    report: int  # descriptor of the memory file to which the rank writes its metrics or its error
    errors: Path  # file of its standard error
    error_file: Path  # file to which torch's `@record` writes the rank's error (TORCHELASTIC_ERROR_FILE)
    code: int | None = None  # exit code; negative: the signal that killed the rank; None: the rank still runs


class WorkerGroup:
    """The ranks of one agent, from one round to the next.

        group.start(placements, run); group.open_gate()
        group.poll()                      # whenever a child has ended
        group.kill(); group.reap(5.0); group.close()

    After `close` it can be started again.
    """

    def __init__(self, logs: Path, *, fresh: Callable[[Placement], Fresh] | None = None) -> None:
        # fresh: returns how to start a rank in a new interpreter, if a fork is unsafe; None: always fork
        self._logs, self._fresh = logs, fresh
        self._workers: list[_Worker] = []
        self._seen: list[WorkerExit] = []  # exits that `poll` has yet to return
        self._left: list[_Worker] = []  # ranks of earlier rounds that did not end
        self._gate: tuple[int, int] | None = None  # read and write end of the gate's pipe
        self._output: Forwarder | None = None
        self._before: set[int] | None = None  # process ids of children that are no ranks of this round; None: unknown
        self._warned = False

    # -- start

    def start(
        self, ranks: Sequence[Placement], run: Run, *, round_number: int = 0,
        close_in_child: Sequence[int] = (), ignore: Collection[signal.Signals] = (),
    ) -> None:  # fmt: skip
        """Starts all ranks of this agent. Before they use the store, they wait until `open_gate`.

        run: is called in a rank's process, and returns its metrics. ignore: signals that ranks ignore from the start.
        Raises WorkersStillThere or StartError: no rank of this round runs.
        """
        assert not self._workers, "the round before is not closed"
        if left := self.still_there():
            raise WorkersStillThere(left)
        self._seen, self._before = [], None
        rank = ranks[0].rank if ranks else 0
        try:
            run_files.make_folder(self._logs)
            self._before = processes.waited_out(processes.children)
            fresh = self._fresh if processes.waited_out(self._cannot_fork) else None
            self._gate = processes.waited_out(os.pipe)
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
        with contextlib.ExitStack() as opened:  # descriptors to close if something fails

            def open_(call: Callable[[], int]) -> int:
                descriptor = processes.waited_out(call)
                opened.callback(os.close, descriptor)
                return descriptor

            writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
            out, err, error_file = (open_(partial(os.open, path, writing, 0o600)) for path in names)
            out_copy, err_copy = (open_(partial(os.open, path, os.O_RDONLY | os.O_CLOEXEC)) for path in names[:2])
            report = open_(partial(processes.memory_file, f"report-{placement.rank}"))
            agent = os.getpid()
            pid = processes.waited_out(fork)
            if pid == 0:
                run_child(
                    placement, run, fresh and fresh(placement), agent,
                    keep=(out, err, report, self._gate[0], names[2]), mask=mask, ignore=ignore,
                    close=[
                        *close_in_child, self._gate[1], error_file, out_copy, err_copy, *self._output.descriptors(),
                        *(worker.report for worker in self._workers),
                    ],
                )  # fmt: skip
            self._workers.append(_Worker(placement, pid, report, names[1], names[2]))
            opened.pop_all()
            for descriptor in (out, err, error_file):
                os.close(descriptor)
            self._output.add(placement.rank, out_copy, err_copy, names[:2])

    def _cannot_fork(self) -> bool:
        # Returns whether ranks must start in a new interpreter, since forking is unsafe. Logs the reason once.
        if self._fresh is None or not (why := unsafe_to_fork()):
            return False
        if not self._warned:
            self._warned = True
            log_line(f"this agent {why}: each rank is started in an interpreter of its own, which takes time")
        return True

    def open_gate(self) -> None:
        if self._gate is not None and self._gate[1] >= 0:
            with contextlib.suppress(BrokenPipeError):  # all ranks have ended
                os.write(self._gate[1], b"!")  # no rank reads it: the pipe stays readable for all
            os.close(self._gate[1])
            self._gate = (self._gate[0], -1)

    # -- watch

    def poll(self) -> list[WorkerExit]:
        """Returns the exits of the ranks that have ended since the last call. Does not block."""
        self._collect()
        seen, self._seen = self._seen, []
        return seen

    def _collect(self) -> None:
        for worker in self._workers:
            if worker.code is not None:
                continue
            _reap_orphans(worker.pid)
            if (code := _exit_code(worker.pid)) is not None:
                worker.code = code
                returned, error = rank_report.read_report(worker.report)
                if error is None and returned is None and code:
                    error = rank_report.read_error_file(worker.error_file)
                if error is None and code > 0:
                    error = rank_report.read_last_words(worker.errors, code)
                placement = worker.placement
                self._seen.append(WorkerExit(
                    placement.place, placement.rank, worker.pid, code, returned, error, time.time()
                ))  # fmt: skip

    def pids(self) -> list[int]:
        """Returns the process ids of the ranks, by place. An ended rank's id may belong to another process by now."""
        return [worker.pid for worker in self._workers]

    def reports(self) -> list[Mapping[str, Any] | None]:
        return [rank_report.read_report(worker.report)[0] for worker in self._workers]

    def forward_output(self) -> bool:
        """Copies some of the ranks' new output, each line as `[RANK] ...`. Returns whether to call again at once."""
        return self._output is not None and self._output.forward()

    # -- end

    def signal(self, place: int, number: int) -> None:
        """Sends the signal `number` to the rank at this place, unless it has ended."""
        worker = self._workers[place]
        if worker.code is None:  # it is not reaped, so no other process can have its id
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def kill(self) -> None:
        for worker in self._workers:
            self.signal(worker.placement.place, signal.SIGKILL)

    def reap(self, timeout: float) -> list[int]:
        """Waits at most `timeout` seconds until all ranks have ended; returns the process ids of the others."""
        give_up, pause = time.monotonic() + timeout, 0.001
        while True:
            self._collect()
            left = [worker.pid for worker in self._workers if worker.code is None]
            if not left or time.monotonic() >= give_up:
                return left
            time.sleep(pause)
            pause = min(0.02, 2 * pause)

    def still_there(self) -> list[LeftOver]:
        """Returns the ranks of earlier rounds that still have a process, which may hold GPUs, memory and ports."""
        self._left = [worker for worker in self._left if _exit_code(worker.pid) is None]
        return [LeftOver.of(worker.placement.rank, worker.pid) for worker in self._left]

    def close(self, timeout: float = 5.0) -> None:
        """Ends the round: kills ranks and their children (see `still_there`), copies the rest of their output."""
        self.kill()
        self.reap(timeout)
        self._left += [worker for worker in self._workers if worker.code is None]
        if self._before is not None:
            processes.kill(self._before | {worker.pid for worker in self._left})
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


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[Any]]:
    # So that a forked child gets no signal before it has reset its handlers. Yields the former mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap_orphans(rank: int) -> None:
    # What a rank starts, in its process group, and does not wait for (`os.system("rsync … &")`) becomes a child of the
    # agent, and would remain a zombie until the end of the round
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_PGID, rank, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != rank:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _exit_code(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # it was reaped elsewhere: the exit code is lost
        return errors.FAILED
    return os.waitstatus_to_exitcode(status) if ended else None


# -- Forking a process that has imported torch: whether that is safe, and how to make it fast and safe


LONE = 0.5  # seconds to wait for other threads of this process to end
LARGE = 1 << 21  # bytes of a large page
_MADV_COLLAPSE = 25  # madvise(2)


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """For forks: keeps the child's garbage collector off objects whose destructor joins a thread that it lacks."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def use_large_pages() -> None:
    """Moves this process's memory into large pages, if the kernel can (Linux 6.1): a fork copies an entry for each."""
    advise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for begin, end in large_ranges(maps.readlines()):
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)  # refused: nothing changes


def large_ranges(maps: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the private address ranges of whole large pages in the lines of /proc/PID/maps (man 5 proc)."""
    found = []
    for line in maps:
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(each, 16) for each in addresses.split("-"))
            begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
            found += [(begin, end)] if begin < end else []
    return found


def unsafe_to_fork() -> str:
    """Returns why forking this process is unsafe, as the end of a sentence ("has 3 threads"); empty: it is safe."""
    if uses_gpu():
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
    with os.scandir("/proc/self/task") as threads:
        return sum(1 for _ in threads)


def uses_gpu(process: int | str = "self", devices: tuple[str, ...] = ("/dev/nvidia-uvm", "/dev/kfd")) -> bool:
    """Returns whether CUDA or ROCm has opened its devices (NVML does not); raises OSError if it cannot look."""
    with os.scandir(f"/proc/{process}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # the descriptor of this scandir itself
                if os.readlink(entry.path).startswith(devices):
                    return True
    return False


def fork() -> int:
    with warnings.catch_warnings():
        # Python warns if there are threads; `unsafe_to_fork` has checked that
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


WORKLOADS = "workloads"  # package whose modules start no thread and touch no GPU when they are imported


def preload(entry: str, timeout: int) -> None:
    """Imports the module of this `workload.entry`, on the main thread and within `timeout` seconds, if it is ours.

    The user's are imported in ranks alone: an import may start threads (OpenMP's) or initialize CUDA, neither of which
    survives a fork. One that fails, or takes longer, raises nothing: the ranks repeat it, so that the user sees their
    traceback, or which rank is missing.
    """
    module = entry.partition(":")[0]
    if not module.startswith(f"{WORKLOADS}."):
        return

    def too_long(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        with contextlib.suppress(Exception):
            signal.alarm(timeout)
            importlib.import_module(module)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
