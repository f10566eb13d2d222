"""Stays with a run until it is over: its output, a progress line where there is a terminal, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import runs
from launcher.cli.text import outcome
from launcher.errors import INTERRUPTED, LauncherError
from launcher.live import Live, Seen, look
from launcher.state import RunState

POLL = 0.1  # seconds between two looks at the files of a run on this machine


def to_the_end(run: runs.Run, *, foreground: bool, output: bool = True, tails: Tails | None = None) -> int:
    """Follows the run and returns the exit code for it.

    Args:
        run: the run.
        foreground: the run belongs to this terminal: Ctrl-C ends it. Otherwise Ctrl-C only stops following.
        output: print what the run prints.
        tails: what of it is not known yet; None: all of it is shown.
    """

    def cancel(kill: bool) -> None:
        Live().cancel(run, kill=kill)

    try:
        with ctrl_c(foreground, cancel) as signals:
            seen = _follow(run, tails or Tails(run), foreground, output)
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


def _follow(run: runs.Run, tails: Tails, foreground: bool, output: bool) -> Seen:
    live = Live()
    pause = POLL if foreground else 1.0
    why = ""
    with progress_line() as show:
        while True:
            seen = look(run, live)
            if seen.state is RunState.QUEUED and "(" in seen.word and seen.word != why:
                why = seen.word  # it may never start, and then this is all that there is to see
                print(f"queued: {why}", file=sys.stderr, flush=True)
            if output:
                for text in tails.new():
                    show.print(text)
            show.update(seen.progress)
            if seen.state.over:
                if output:
                    for text in tails.new(last=True):
                        show.print(text)
                return seen
            time.sleep(pause)
            if not foreground:
                pause = min(pause * 1.2, 15)  # a queue may take hours


class Tails:
    """New lines in a run's output files."""

    def __init__(self, run: runs.Run, paths: list[Path] | None = None) -> None:
        self._run, self._paths = run, paths
        self._read: dict[Path, int] = {}

    def new(self, last: bool = False) -> Iterator[str]:
        """What was written since the last call, in whole lines (also a last half one if `last`)."""
        for path in self._run.outputs() if self._paths is None else self._paths:
            start = self._read.get(path, 0)
            try:
                with open(path, "rb") as file:
                    file.seek(start)
                    data = file.read()
            except OSError:
                continue
            whole = len(data) if last else data.rfind(b"\n") + 1
            if whole:
                self._read[path] = start + whole
                yield data[:whole].decode(errors="replace").rstrip("\n")


class PlainLine:
    """Where stdout is no terminal: output only."""

    def print(self, text: str) -> None:
        print(text, flush=True)

    def update(self, progress: Mapping[str, Any] | None) -> None:
        pass


class RichLine:
    """A progress line below the output."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(compact=True), TextColumn("{task.fields[values]}"),
            console=Console(highlight=False), transient=True,
        )  # fmt: skip
        self._task: Any = None

    def print(self, text: str) -> None:
        from rich.text import Text

        self.bar.console.print(Text.from_ansi(text))

    def update(self, progress: Mapping[str, Any] | None) -> None:
        if progress is None:
            return
        known = ("time", "event", "step", "total", "writer")
        values = "  ".join(f"{key} {_short(value)}" for key, value in progress.items() if key not in known)
        if self._task is None:
            self._task = self.bar.add_task("step", total=progress["total"], values="")
        self.bar.update(self._task, completed=progress["step"], total=progress["total"], values=values)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def progress_line() -> Iterator[PlainLine | RichLine]:
    """A line for the terminal there is."""
    if not sys.stdout.isatty():
        yield PlainLine()
        return
    line = RichLine()
    with line.bar:
        yield line
