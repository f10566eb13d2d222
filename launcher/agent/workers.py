"""Starts the ranks of one agent as processes, polls, signals and kills them, reaps them, and copies their output."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import resource
import select
import signal
import stat
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from launcher import errors, io_bounds, processes
from launcher.files import safe_io
from launcher.files.retried_reads import backoff
from launcher.formatting import log_line, long_size, ranges
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Placement
from launcher.worker import shared_with_agent
from launcher.worker.shared_with_agent import WorkerError

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
            "TORCHELASTIC_ERROR_FILE": str(error_file), shared_with_agent.GATE: str(gate),
            shared_with_agent.REPORT: str(report)
        })  # fmt: skip
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if fresh is not None:
            for descriptor in (gate, report, *fresh.descriptors):
                os.set_inheritable(descriptor, True)
            os.execvpe(fresh.command[0], list(fresh.command), os.environ)  # noqa: S606  an argv list needs no shell
        shared_with_agent.begin_process()
        code = shared_with_agent.run_and_report(partial(run, placement), report)
    except BaseException:
        traceback.print_exc()
    finally:
        shared_with_agent.end_process(code)
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
        return cls(rank, pid, processes.state(pid))

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


@dataclass
class _Worker:
    placement: Placement
    pid: int
    report: int  # descriptor of the memory file to which the rank writes its metrics or its error
    errors: Path  # file of its standard error
    error_file: Path  # file to which torch's `@record` writes the rank's error (TORCHELASTIC_ERROR_FILE)
    code: int | None = None  # exit code; negative: the signal that killed the rank; None: the rank still runs


class WorkerGroup:
    """The ranks of one agent: `start`, `open_gate`, `poll` when a child has ended, `close`; then the next round."""

    def __init__(self, logs: Path, *, fresh: Callable[[Placement], Fresh] | None = None) -> None:
        # fresh: returns how to start a rank in a new interpreter, if a fork is unsafe; None: always fork
        self._logs, self._fresh = logs, fresh
        self._workers: list[_Worker] = []
        self._seen: list[WorkerExit] = []  # exits that `poll` has yet to return
        self._left: list[_Worker] = []  # ranks of earlier rounds that did not end
        self._gate: tuple[int, int] | None = None  # read and write end of the gate's pipe
        self._output: Forwarder | None = None
        self._before: set[int] | None = None  # process ids of children that are no ranks of this round; None: unknown
        self.spared: set[int] = set()  # children of this round that are no ranks, and that others wait for
        self._warned = False

    # -- start

    def start(
        self, ranks: Sequence[Placement], run: Run, *, round_number: int = 0,
        close_in_child: Sequence[int] = (), ignore: Collection[signal.Signals] = (),
    ) -> None:  # fmt: skip
        """Starts all ranks of this agent. Before they use the store, they wait until `open_gate`.

        run: is called in a rank's process, and returns its metrics. ignore: signals that ranks ignore from the start.
        Raises StartError: no rank of this round runs.
        """
        assert not self._workers, "the round before is not closed"
        self._seen, self._before = [], None
        rank = ranks[0].rank if ranks else 0
        try:
            safe_io.make_folder(self._logs)
            self._before = processes.waited_out(processes.children)
            fresh = self._fresh if processes.waited_out(self._cannot_fork) else None
            self._gate = processes.waited_out(os.pipe)
            self._output = Forwarder()
            for stream in (sys.stdout, sys.stderr):  # what is in their buffers would be written by every fork
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            with processes.garbage_kept(), _signals_blocked() as before:
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
            pid = processes.waited_out(processes.fork)
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
        if self._fresh is None or not (why := processes.unsafe_to_fork()):
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
            if (code := _exit_code(worker.pid)) is not None:
                worker.code = code
                returned, error = shared_with_agent.read_report(worker.report)
                if error is None and returned is None and code:
                    error = shared_with_agent.read_error_file(worker.error_file)
                if error is None and code:
                    error = shared_with_agent.read_last_words(worker.errors, code)
                placement = worker.placement
                self._seen.append(WorkerExit(
                    placement.place, placement.rank, worker.pid, code, returned, error, time.time()
                ))  # fmt: skip
        _reap_orphans(self.spared | {worker.pid for worker in self._workers if worker.code is None})

    def pids(self) -> list[int]:
        """Returns the process ids of the ranks, by place. An ended rank's id may belong to another process by now."""
        return [worker.pid for worker in self._workers]

    def reports(self) -> list[Mapping[str, Any] | None]:
        return [shared_with_agent.read_report(worker.report)[0] for worker in self._workers]

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
        for _ in backoff(timeout, 0.001, 0.02):
            self._collect()
            left = [worker.pid for worker in self._workers if worker.code is None]
            if not left:
                break
        return left

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
            with contextlib.suppress(OSError):  # it is on a shared file system, and the exit codes of ranks are known
                worker.error_file.unlink()
        for end in self._gate or ():
            if end >= 0:
                os.close(end)
        self._gate, self._workers, self.spared = None, [], set()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[Any]]:
    # So that a forked child gets no signal before it has reset its handlers. Yields the former mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap_orphans(keep: Collection[int]) -> None:
    # What a rank starts and does not wait for (`os.system("rsync … &")`) becomes a child of the agent, and would remain
    # a zombie until the end of the round. Nobody reads the codes of `attach`'s children. One of `keep` that has ended
    # holds up those after it until it is reaped
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in keep:
            os.waitpid(ended.si_pid, os.WNOHANG)


def _exit_code(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # it was reaped elsewhere: the exit code is lost
        return errors.FAILED
    return os.waitstatus_to_exitcode(status) if ended else None


WORKLOADS = "workloads"  # package whose modules start no thread and touch no GPU when they are imported


def preload(entry: str, plan: JobPlan | None = None) -> None:
    """Imports the module of this `workload.entry` if it is ours, and calls its `before_ranks(plan)`, if it has that.

    The user's are imported in ranks alone: an import may start threads (OpenMP's) or initialize CUDA, neither of which
    survives a fork. What fails raises nothing: the ranks repeat it, so that the user sees their traceback.
    """
    module = entry.partition(":")[0]
    if module.startswith(f"{WORKLOADS}."):
        with contextlib.suppress(Exception):
            found = importlib.import_module(module)
            if plan is not None and hasattr(found, "before_ranks"):
                found.before_ranks(plan)


# -- The output of ranks: names of its files, and what is copied from them to the agent's own output


def log_name(rank: int | str, round_number: int, kind: str) -> str:
    """Returns a file name such as `rank-3.out`, or `rank-3.round-1.out` for rounds after round 0."""
    return f"rank-{rank}.round-{round_number}.{kind}" if round_number else f"rank-{rank}.{kind}"


# -- Copies the output files of ranks to the agent's output: whole lines, each with `[rank]` before it
#
# A line that is rewritten with carriage returns, such as a progress bar, is copied at most every STALE seconds, ended
# by a carriage return, and its last state as a line; launcher/runs/output_files.py reads that.


READ = 1 << 16  # bytes that are read of one file before the others have their turn
MOST = 1 << 22  # about so many bytes are copied by one call of `forward`
TAIL = 1 << 16  # bytes at the end of a file that are copied even if there is no time for those before them
STALE = 1.0  # seconds after which an unfinished line is copied as it is (a prompt, a progress bar that stands still)
PIPE = 4096  # bytes that a writable pipe accepts at once (PIPE_BUF, man 7 pipe)
WAITS = 0.02  # most seconds for which one call of `forward` waits for slow readers
ENDS = 2.0  # most seconds for which `finish` waits until the readers have taken the last lines
# The end of a line, or of one state of a rewritten line. A \r as the very last byte may be the start of \r\n.
_END = re.compile(rb"(\r\n|\n|\r(?!\n|\Z))")


@dataclass
class _Source:
    # The output or the error file of one rank

    descriptor: int
    path: Path
    prefix: bytes  # text to put in front of each line
    offset: int = 0  # number of bytes that have been read
    partial: bytes = b""  # the text after the last line end or carriage return
    since: float = field(default=0.0)  # monotonic time at which the file last grew
    rewritten: bool = False  # whether the unfinished line is rewritten with carriage returns
    state: bytes = b""  # the last complete state of the rewritten line
    shown: bytes = b""  # the state that was copied last
    shown_at: float = float("-inf")  # the monotonic time at which it was copied

    def read(self) -> bytes:
        """Returns the next bytes of the file; empty: there are none, or they cannot be read now."""
        data = b""
        with contextlib.suppress(OSError):  # the next call repeats it
            data = os.pread(self.descriptor, READ, self.offset)
        self.offset += len(data)
        return data

    def left(self) -> int:
        """Returns how many bytes of the file have not been read; READ if that is not known now."""
        try:
            return os.fstat(self.descriptor).st_size - self.offset
        except OSError:
            return READ

    def copy_of(self, data: bytes) -> bytes:
        """Returns the lines that end within `data`, the next bytes of the file, with prefixes."""
        if self.rewritten or b"\r" in data or self.partial.endswith(b"\r"):
            return self.prefixed(self.lines(data))
        lines, end, rest = data.rpartition(b"\n")  # without a progress bar, ten times as fast
        if not end:
            self.partial += data
            return b""
        lines, self.partial = self.partial + lines, rest
        return self.prefix + lines.replace(b"\n", b"\n" + self.prefix) + b"\n"

    def prefixed(self, lines: list[bytes]) -> bytes:
        return b"".join(self.prefix + line + b"\n" for line in lines)

    def lines(self, data: bytes) -> list[bytes]:
        """Returns the lines that end within `data`, the next bytes of the file; of a rewritten line its last state."""
        *parts, self.partial = _END.split(self.partial + data)
        found = []
        for text, end in zip(parts[::2], parts[1::2], strict=True):
            if end == b"\r":
                self.rewritten, self.state = True, text or self.state
                continue
            found.append(text or self.state)
            self.rewritten, self.state, self.shown = False, b"", b""
        return found

    @property
    def now(self) -> bytes:
        return self.partial.rstrip(b"\r") or self.state

    def last_lines(self) -> bytes:
        """Returns the last lines of the file, and before them how much of it is left out."""
        lines = []
        if (missing := self.left() - TAIL) > 0:
            lines = [self.now] * bool(self.now)
            words = f"launcher: {long_size(missing)} of this rank's output is missing here: all of it is in {self.path}"
            lines.append(os.fsencode(words))
            self.offset, self.partial, self.rewritten, self.state = self.offset + missing, b"", False, b""
            _, _, whole = (data := self.read()).partition(b"\n")
            lines += self.lines(whole or data)
        return self.prefixed([*lines, *self.lines(self.read()), *[self.now] * bool(self.now)])


class _Sink:
    # Keeps what its reader has not taken yet, or what a full disk does not take

    def __init__(self, descriptor: int, clock: Callable[[], float]) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._left, self._broken = memoryview(b""), False
        self._file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self.taken = 0  # bytes that were written

    def drained(self, until: float) -> bool:
        """Writes what is left, and waits for a slow reader until the time `until`. Returns whether nothing is left."""
        while True:
            self._write()
            if not self._left or self._file or not self._ready.poll(max(0.0, until - self._clock()) * 1000):
                return not self._left

    def write(self, data: bytes) -> None:
        if not self._broken:
            self._left = memoryview(bytes(self._left) + data)
            self._write()

    def _write(self) -> None:
        try:
            while self._left and (self._file or self._ready.poll(0)):
                count = os.write(self._descriptor, self._left if self._file else self._left[:PIPE])
                self._left, self.taken = self._left[count:], self.taken + count
        except BrokenPipeError:  # drop it, since the ranks' files have everything
            self._broken, self._left = True, memoryview(b"")
        except OSError:  # the next call repeats it
            return


class Forwarder:
    """Copies ranks' output, each line as `[RANK] ...`, to the agent's own; no thread, a bounded amount a call."""

    def __init__(self, out: int = 1, err: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        # descriptors to write the ranks' stdout and stderr to
        self._sinks = (_Sink(out, clock), _Sink(err, clock))
        self._sources: deque[tuple[_Source, _Sink]] = deque()  # the next one to be read is the first
        self._clock = clock

    def add(self, rank: int, out: int, err: int, paths: Sequence[Path]) -> None:
        """Adds a rank's files, open for reading, to be copied from their start; `finish` closes the descriptors."""
        for descriptor, path, sink in zip((out, err), paths, self._sinks, strict=True):
            self._sources.append((_Source(descriptor, path, b"[%d] " % rank), sink))

    def forward(self) -> bool:
        """Copies about MOST bytes of new output, of each file in turn. Returns whether to call it again at once."""
        until, taken = self._clock() + WAITS, self._taken()
        copied = idle = 0  # bytes; files in a row that have no more now
        blocked = False
        while copied < MOST and idle < len(self._sources):
            source, sink = self._sources[0]
            self._sources.rotate(-1)
            count = 0
            if sink.drained(until):
                count = self._copy(source, sink, self._clock())
            else:
                blocked = True
            copied, idle = copied + count, 0 if count == READ else idle + 1
        return copied >= MOST or (blocked and self._taken() > taken)

    def finish(self, timeout: float = 5.0) -> None:
        """Copies the rest of the ranks' output, after the timeout its last lines only, and closes the ranks' files."""
        give_up = self._clock() + timeout
        while any(source.left() > 0 or not sink.drained(0.0) for source, sink in self._sources):
            if self._clock() >= give_up:
                break
            if not self.forward():
                time.sleep(WAITS)
        for source, sink in self._sources:
            sink.write(source.last_lines())
            os.close(source.descriptor)
        for sink in self._sinks:
            sink.drained(self._clock() + ENDS)
        self._sources.clear()

    def descriptors(self) -> list[int]:
        return [source.descriptor for source, _ in self._sources]

    def _taken(self) -> int:
        return sum(sink.taken for sink in self._sinks)

    def _copy(self, source: _Source, sink: _Sink, now: float) -> int:
        data = source.read()
        text = source.copy_of(data) if data else b""
        if data:
            source.since = now
        stale = not data and source.partial and not source.rewritten and now - source.since >= STALE
        if stale or len(source.partial) + len(source.prefix) + READ >= io_bounds.OUTPUT_LINE_BYTES:
            text, source.partial = text + source.prefixed([source.partial.rstrip(b"\r")]), b""
        if text:
            sink.write(text)
        if source.rewritten and source.now != source.shown and now - source.shown_at >= STALE:
            source.shown, source.shown_at = source.now, now
            sink.write(source.prefix + source.now + b"\r")
        return len(data)
