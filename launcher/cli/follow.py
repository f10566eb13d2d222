"""Follows a run until it is over: prints its output, a progress bar in a terminal, and how the run ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from launcher.cli.progress import Bars, Lines, Rate, of_training, shown
from launcher.cli.text import outcome
from launcher.errors import INTERRUPTED, LauncherError, UnavailableError
from launcher.monitoring.run_status import JobMonitor, RunStatus, status_of
from launcher.monitoring.state import RunState
from launcher.runs import directory
from launcher.runs.events import Progress, every
from launcher.runs.output import Stream
from launcher.schedulers.query_cache import interval
from launcher.submission.submit import print_notice

POLL_INTERVAL = 0.1  # seconds, for a run on this machine
MAX_POLL_INTERVAL = 15.0  # seconds, while nothing changes or nothing can be read
# Errors of writing output: the terminal was closed, the reader of a pipe has exited, or the disk is full.
OUTPUT_GONE = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO, errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")


def follow_to_end(
    run: directory.Run, *, foreground: bool, output: bool = True, stream: Stream | None = None,
    start: Callable[[], object] | None = None,
) -> int:  # fmt: skip
    """Follows a run to its end, and prints how it ended.

    foreground: whether the run belongs to this terminal. If so, Ctrl-C and closing the window cancel the run; else they
        only end this command.
    stream: reads the output that is printed (with `output`); None: all output of the run.
    start: function that starts the run; None: the run was started before.
    Returns 0 if the run is done or pruned, 75 if it is stopped and can be resumed, 93 if a retry would fail too, else
    1; with or without `foreground`, 130 after Ctrl-C, SIGTERM or a closed window.
    """
    started = start is None

    def cancel(kill: bool) -> None:
        if started:
            JobMonitor().cancel(run, kill=kill)

    def follow(shown: bool, signals: Sequence[int]) -> RunStatus:
        nonlocal started
        if not started and start is not None:
            start()
            started = True
            if signals:  # they came before the run could be cancelled
                cancel(False)
        return _follow(run, stream or Stream(run), foreground, output and shown)

    result = with_signals(run.id, follow, foreground, cancel)
    if result is None:
        return INTERRUPTED
    seen, interrupted = result
    print(outcome(seen), file=sys.stderr if seen.state is not RunState.DONE else sys.stdout)
    return INTERRUPTED if interrupted else seen.exit_code


def with_signals(
    name: str, follow: Callable[[bool, Sequence[int]], T], foreground: bool, cancel: Callable[[bool], object]
) -> tuple[T, bool] | None:
    """Follows a run or sweep to its end. Handles signals and the loss of the terminal in the meantime.

    | event | the run belongs to this terminal | it does not |
    |---|---|---|
    | Ctrl-C, SIGTERM | it is cancelled, and followed to its end; the second time it is killed | following ends |
    | the window is closed (SIGHUP) | it is cancelled, and followed to its end | following ends |
    | the reader of the output has exited (`head`) | the same | OSError |

    follow: follows the run to its end. Called with whether output can be printed, and with the list of signals received
        so far.
    Returns the result of `follow`, and whether the run was interrupted; None: following ended, and the run continues.
    """
    try:
        with ctrl_c(foreground, cancel) as signals:
            try:
                return follow(True, signals), bool(signals)
            except OSError as error:
                if not foreground or error.filename is not None or error.errno not in OUTPUT_GONE:
                    raise
                _discard_output(f"the reader of the output has exited: stopping {name}")
                if not signals:
                    cancel(False)
                return follow(False, signals), True
    except KeyboardInterrupt:
        print_notice(f"{name} continues without this terminal")
        return None


def _discard_terminal_output() -> None:
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere.fileno(), number)


def _discard_output(message: str) -> None:
    # Redirects stderr, too, if it is the same file or cannot be written to
    with open(os.devnull, "wb") as nowhere:
        separate = not os.path.sameopenfile(1, 2)
        os.dup2(nowhere.fileno(), 1)
        try:
            if separate:
                os.write(2, f"launcher: {message}\n".encode())
        except OSError:
            separate = False
        if not separate:
            os.dup2(nowhere.fileno(), 2)


@contextlib.contextmanager
def ctrl_c(foreground: bool, cancel: Callable[[bool], object]) -> Iterator[list[int]]:
    """Handles Ctrl-C, SIGTERM and SIGHUP inside the `with` block; yields the list of signals received so far.

    foreground: whether the run belongs to this terminal. If so, a signal calls `cancel`, with True (kill it) from the
        second on; else it raises KeyboardInterrupt.
    """
    signals: list[int] = []

    def handle(number: int, _: object) -> None:
        if signals and number == signal.SIGHUP:  # closing a window may send it twice
            return
        signals.append(number)
        if not foreground:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            _discard_terminal_output()
        first = len(signals) == 1
        print_notice("stopping; Ctrl-C again kills" if first else "killing")
        try:
            cancel(not first)
        except (LauncherError, OSError) as error:
            print_notice(str(error))

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _follow(run: directory.Run, stream: Stream, foreground: bool, output: bool) -> RunStatus:
    live, rate = JobMonitor(share=True), Rate()
    polls, why = 0, ""
    with shown(every=None) as show:  # no progress lines where there is no terminal
        while True:
            seen = wait_until_readable(lambda: status_of(run, live))
            if seen.state is RunState.QUEUED and seen.job.reason and seen.job.text != why:
                why = seen.job.text  # the job may never start, so its pending reason is shown
                print(f"queued: {why}", file=sys.stderr, flush=True)
            try:
                for text in stream.new(last=seen.state.over) if output else ():
                    show.print(_decoded(text))
            except UnavailableError as error:
                print(f"launcher: output is missing here: {error}", file=sys.stderr, flush=True)
            show.show_run_bars(stream.states if output else ())
            _show_progress(show, seen, rate)
            if seen.state.over:
                return seen
            # A job may be queued for hours, so the interval grows.
            time.sleep(POLL_INTERVAL if foreground else interval(polls, 0.0, 1.0, MAX_POLL_INTERVAL))
            polls += 1


def wait_until_readable(read: Callable[[], T]) -> T:
    """Calls `read` until it does not raise UnavailableError, and returns its result. Prints each new error once."""
    why = ""
    while True:
        try:
            return read()
        except UnavailableError as error:  # the state of the run is unknown, not failed
            if str(error) != why:
                why = str(error)
                print(f"launcher: waiting: {why}", file=sys.stderr, flush=True)
            time.sleep(MAX_POLL_INTERVAL)


def _show_progress(show: Lines | Bars, seen: RunStatus, rate: Rate) -> None:
    for event in every(seen.history.events, Progress):
        rate.add(event.time, event.step)
    if (progress := seen.progress) is not None:
        show.show("step", progress.step, progress.total or None, of_training(progress, rate))


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace").removesuffix("\n")
