"""Stays with a run until it is over: its output, a progress line where there is a terminal, and how it ended."""

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
from launcher.monitoring.live import Live, Seen, look
from launcher.monitoring.state import RunState
from launcher.runs import directory
from launcher.runs.output import Stream
from launcher.schedulers.query_cache import interval
from launcher.submission.interrupts import say

POLL = 0.1  # seconds between two looks at the files of a run on this machine
# Of a write: the terminal was closed, the reader has left, or there is no room for what the user redirected.
OUTPUT_GONE = frozenset({errno.EIO, errno.EPIPE, errno.ENXIO, errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")
SLOWEST = 15.0  # seconds between two looks where nothing happens, or nothing can be read


def to_the_end(
    run: directory.Run, *, foreground: bool, output: bool = True, printed: Stream | None = None,
    begin: Callable[[], object] | None = None,
) -> int:  # fmt: skip
    """Follows the run and returns the exit code for it.

    Args:
        run: the run.
        foreground: the run belongs to this terminal: Ctrl-C ends it, and so does closing the window. Otherwise these
            only stop following.
        output: print what the run prints.
        printed: that, where some of it is known; None: all of it is shown.
        begin: starts it; None: it has been started.
    """
    begun = begin is None

    def cancel(kill: bool) -> None:
        if begun:
            Live().cancel(run, kill=kill)

    def follow(shown: bool, signals: Sequence[int]) -> Seen:
        nonlocal begun
        if not begun and begin is not None:
            begin()
            begun = True
            if signals:  # that came before there was anything to end
                cancel(False)
        return _follow(run, printed or Stream(run), foreground, output and shown)

    attended = attend(run.id, follow, foreground, cancel)
    if attended is None:
        return INTERRUPTED
    seen, interrupted = attended
    print(outcome(seen), file=sys.stderr if seen.state is not RunState.DONE else sys.stdout)
    return INTERRUPTED if interrupted else seen.exit_code


def attend(
    name: str, follow: Callable[[bool, Sequence[int]], T], foreground: bool, cancel: Callable[[bool], object]
) -> tuple[T, bool] | None:
    """What following something comes to, and whether it was interrupted; None: it goes on without this terminal.

    | what happens | it belongs to this terminal | it does not |
    |---|---|---|
    | Ctrl-C, SIGTERM | it is cancelled, and followed to its end; the second time it is killed | following ends |
    | the window is closed (SIGHUP) | it is cancelled, and followed to its end | following ends |
    | nobody reads what is printed any more (`head`) | the same | an error |

    Args:
        name: of the run or sweep.
        follow: follows it to its end; gets whether somebody sees what is printed, and the signals that came so far.
        foreground: it belongs to this terminal.
        cancel: ends it; with True at once.
    """
    try:
        with ctrl_c(foreground, cancel) as signals:
            try:
                return follow(True, signals), bool(signals)
            except OSError as error:
                if not foreground or error.filename is not None or error.errno not in OUTPUT_GONE:
                    raise
                _without_reader(f"nobody reads the output any more: stopping {name}")
                if not signals:
                    cancel(False)
                return follow(False, signals), True
    except KeyboardInterrupt:
        say(f"{name} goes on without this terminal")
        return None


def _without_terminal() -> None:
    """What would go to the terminal goes nowhere from now on."""
    with open(os.devnull, "wb") as nowhere:
        for number in (1, 2):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere.fileno(), number)


def _without_reader(words: str) -> None:
    """Standard output goes nowhere from now on; so does standard error, unless it is another file that takes this."""
    with open(os.devnull, "wb") as nowhere:
        apart = not os.path.sameopenfile(1, 2)
        os.dup2(nowhere.fileno(), 1)
        try:
            if apart:
                os.write(2, f"launcher: {words}\n".encode())
        except OSError:
            apart = False
        if not apart:
            os.dup2(nowhere.fileno(), 2)


@contextlib.contextmanager
def ctrl_c(foreground: bool, cancel: Callable[[bool], object]) -> Iterator[list[int]]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP end what belongs to this terminal; the signals that came are yielded.

    Args:
        foreground: it belongs to it; else they raise KeyboardInterrupt.
        cancel: ends it; with True at once, the second time.
    """
    signals: list[int] = []

    def interrupted(number: int, _: object) -> None:
        if signals and number == signal.SIGHUP:  # a window that is closed may send it twice
            return
        signals.append(number)
        if not foreground:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            _without_terminal()
        first = len(signals) == 1
        say("stopping; Ctrl-C again kills" if first else "killing")
        try:
            cancel(not first)
        except (LauncherError, OSError) as error:
            say(str(error))

    previous = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _follow(run: directory.Run, printed: Stream, foreground: bool, output: bool) -> Seen:
    live, rate = Live(share=True), Rate()
    looks, why = 0, ""
    with shown(every=None) as show:  # where there is no terminal the output tells enough
        while True:
            seen = readable(lambda: look(run, live))
            if seen.state is RunState.QUEUED and "(" in seen.word and seen.word != why:
                why = seen.word  # it may never start, and then this is all that there is to see
                print(f"queued: {why}", file=sys.stderr, flush=True)
            for text in printed.new(last=seen.state.over) if output else ():
                show.print(_decoded(text))
            show.stand(printed.states if output else ())
            _show_progress(show, seen, rate)
            if seen.state.over:
                return seen
            time.sleep(POLL if foreground else interval(looks, 0.0, 1.0, SLOWEST))  # a queue may take hours
            looks += 1


def readable(read: Callable[[], T]) -> T:
    """What is read, once it can be; until then each new reason why not is printed."""
    why = ""
    while True:
        try:
            return read()
        except UnavailableError as error:  # which tells nothing of what is followed
            if str(error) != why:
                why = str(error)
                print(f"launcher: waiting: {why}", file=sys.stderr, flush=True)
            time.sleep(SLOWEST)


def _show_progress(show: Lines | Bars, seen: Seen, rate: Rate) -> None:
    for event in seen.story.events:
        if event["event"] == "progress":
            rate.add(event["time"], event["step"])
    if (progress := seen.progress) is not None:
        show.show("step", progress["step"], progress["total"] or None, of_training(progress, rate))


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace").removesuffix("\n")
