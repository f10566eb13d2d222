"""Stays with a run until it is over: its output, a progress line where there is a terminal, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator

from launcher import runs
from launcher.cli.progress import Bars, Lines, Rate, of_training, shown
from launcher.cli.text import outcome
from launcher.errors import INTERRUPTED, LauncherError, UnavailableError
from launcher.live import Live, Seen, look
from launcher.printed import Stream
from launcher.state import RunState

POLL = 0.1  # seconds between two looks at the files of a run on this machine
SLOWEST = 15.0  # seconds between two looks where nothing happens, or nothing can be read


def to_the_end(run: runs.Run, *, foreground: bool, output: bool = True, printed: Stream | None = None) -> int:
    """Follows the run and returns the exit code for it.

    Args:
        run: the run.
        foreground: the run belongs to this terminal: Ctrl-C ends it. Otherwise Ctrl-C only stops following.
        output: print what the run prints.
        printed: that, where some of it is known; None: all of it is shown.
    """

    def cancel(kill: bool) -> None:
        Live().cancel(run, kill=kill)

    try:
        with ctrl_c(foreground, cancel) as signals:
            seen = _follow(run, printed or Stream(run), foreground, output)
    except KeyboardInterrupt:
        print(f"launcher: {run.id} goes on without this terminal", file=sys.stderr)
        return INTERRUPTED
    print(outcome(seen), file=sys.stderr if seen.state is not RunState.DONE else sys.stdout)
    return INTERRUPTED if signals else seen.exit_code


@contextlib.contextmanager
def ctrl_c(foreground: bool, cancel: Callable[[bool], object]) -> Iterator[list[int]]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP end what belongs to this terminal; the signals that came are yielded.

    Args:
        foreground: it belongs to it; else they raise KeyboardInterrupt.
        cancel: ends it; with True at once, the second time.
    """
    signals: list[int] = []

    def interrupted(number: int, _: object) -> None:
        signals.append(number)
        if not foreground:
            raise KeyboardInterrupt
        first = len(signals) == 1
        print("launcher: stopping; Ctrl-C again kills" if first else "launcher: killing", file=sys.stderr)
        try:
            cancel(not first)
        except LauncherError as error:
            print(f"launcher: {error}", file=sys.stderr)

    previous = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _follow(run: runs.Run, printed: Stream, foreground: bool, output: bool) -> Seen:
    live, rate = Live(share=True), Rate()
    pause = POLL if foreground else 1.0
    why = ""
    with shown(every=None) as show:  # where there is no terminal the output tells enough
        while True:
            try:
                seen = look(run, live)
            except UnavailableError as error:  # which tells nothing of the run
                if str(error) != why:
                    why = str(error)
                    print(f"launcher: waiting: {why}", file=sys.stderr, flush=True)
                time.sleep(SLOWEST)
                continue
            if seen.state is RunState.QUEUED and "(" in seen.word and seen.word != why:
                why = seen.word  # it may never start, and then this is all that there is to see
                print(f"queued: {why}", file=sys.stderr, flush=True)
            for text in printed.new(last=seen.state.over) if output else ():
                show.print(_decoded(text))
            _show_progress(show, seen, rate)
            if seen.state.over:
                return seen
            time.sleep(pause)
            if not foreground:
                pause = min(pause * 1.2, SLOWEST)  # a queue may take hours


def _show_progress(show: Lines | Bars, seen: Seen, rate: Rate) -> None:
    for event in seen.story.events:
        if event["event"] == "progress":
            rate.add(event["time"], event["step"])
    if (progress := seen.progress) is not None:
        show.show("step", progress["step"], progress["total"], of_training(progress, rate))


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace").removesuffix("\n")
