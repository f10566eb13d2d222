"""Progress bars of trainings, sweeps and downloads, and what commands that follow a run share besides.

Without a terminal, only the text after the bar is printed, at intervals. rich omits colours if NO_COLOR is set.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, TypeVar

from launcher.cli.output import terminal_width
from launcher.errors import UnavailableError, is_transient
from launcher.formatting import brief, coloured, long_size, number, one_line, raw
from launcher.runs.events import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY = 10.0  # seconds between two lines about the same thing, without a terminal
WINDOW = 30.0  # seconds over which a rate is measured
UNREADABLE_INTERVAL = 15.0  # seconds between two looks at a run, while nothing can be read
T = TypeVar("T")


def wait_until_readable(read: Callable[[], T]) -> T:
    """Calls `read` until the file server responds, and returns its result. Prints each new error once."""
    why = ""
    while True:
        try:
            return read()
        except OSError as error:  # the state of the run is unknown, not failed
            of_a_file = isinstance(error, UnavailableError) or error.filename is not None  # else it is the output's
            if not of_a_file or not is_transient(error):
                raise
            if str(error) != why:
                why = str(error)
                print(f"launcher: waiting: {why}", file=sys.stderr, flush=True)
            time.sleep(UNREADABLE_INTERVAL)


def timed(read: Callable[[], T]) -> tuple[T, float]:
    """Returns the result of `read`, and the seconds that it took."""
    began = time.monotonic()
    return read(), time.monotonic() - began


def on_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def rate_of(seen: Sequence[tuple[float, float]]) -> float | None:
    """Returns how fast a number grows per second, from (time, number), oldest first; None: unknown, or not.

    Only the later half of the growth counts: the first steps of a training take longer than all others.
    """
    if len(seen) < 2:
        return None
    now, done = seen[-1]
    half = (seen[0][1] + done) / 2
    began, first = next((each for each in reversed(seen[:-1]) if each[1] <= half), seen[0])
    return float((done - first) / (now - began)) if done > first and now > began else None


class Rate:
    """Measures how fast a number grows, over a window of seconds. The caller passes the times."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, moment: float, done: float) -> None:
        """Adds a measured value at a time (seconds of any clock), if that is later than the newest one."""
        if self._seen and moment <= self._seen[-1][0]:
            return
        if self._seen and done < self._seen[-1][1]:  # it has started over
            self._seen.clear()
        self._seen.append((moment, done))
        while len(self._seen) > 2 and moment - self._seen[1][0] >= self._window:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        """None: not known yet, or the number does not grow."""
        return rate_of(list(self._seen))

    def left(self, total: float) -> float | None:
        rate = self.per_second
        return None if rate is None else max(0.0, total - self._seen[-1][1]) / rate


def time_left(rate: Rate, total: float) -> list[str]:
    """Returns `4m left` in a list, which is empty if that is not known."""
    seconds = rate.left(total)
    return [f"{brief(seconds)} left"] if seconds is not None and seconds >= 1 else []


def of_training(progress: Progress, rate: Rate) -> str:
    """Formats a `progress` event: `120/2200  24.1 steps/s  26,850 images/s  1m left  loss 0.0021`."""
    values = dict(progress.values or {})
    speed = rate.per_second
    pace = "" if speed is None else f"{number(speed, 3)} steps/s" if speed >= 0.1 else f"{number(1 / speed, 3)} s/step"
    rates = [key for key, value in values.items() if key.endswith("_per_s") and isinstance(value, (int, float))]
    samples = [f"{number(values.pop(key), 3)} {key[:-6]}/s" for key in rates]
    others = [f"{key} {number(value, 3) if isinstance(value, float) else value}" for key, value in values.items()]
    total = progress.total
    done = f"{progress.step}/{total}" if total > 0 else f"{progress.step}"
    return "  ".join([done, *filter(None, [pace]), *samples, *(time_left(rate, total) if total > 0 else ()), *others])


def of_download(done: int, total: int, rate: Rate) -> str:
    """Formats the progress of a download: `3.2 MiB of 9.9 MiB  1.1 MiB/s  6s left`. Sizes are in bytes."""
    speed = rate.per_second
    pace = [] if speed is None else [f"{long_size(speed)}/s"]
    return "  ".join([f"{long_size(done)} of {long_size(total)}", *pace, *time_left(rate, total)])


# -- Bars and lines


class RunBars:
    """Shows the newest of the bars that a run itself prints, such as tqdm's (lines that end in a carriage return).

    It is the last line of a terminal; elsewhere it is printed at intervals. The import of rich would take too long.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = raw(stream), clock
        self._in_place = on_terminal(stream)
        self._shown, self._when = "", clock()

    def show(self, states: Sequence[bytes]) -> None:
        """Shows the newest of a run's unfinished lines; empty: no bar is shown any more."""
        state = one_line(states[-1].decode(errors="replace")) if states else ""
        if state == self._shown:
            return
        if self._in_place:
            width = terminal_width() - 1
            self._stream.write(f"\r{state[:width]}\x1b[K")
        elif not state or self._clock() - self._when < EVERY:
            return
        else:
            self._stream.write(f"{state}\n")
        self._stream.flush()
        self._shown, self._when = state, self._clock()

    def clear(self) -> None:
        """Removes the bar; to be called before a line is printed."""
        if self._in_place and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""


class Lines:
    """Prints progress as lines at intervals, for output that is not a terminal; every=None: only `print` prints."""

    def __init__(self, stream: TextIO, every: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._every, self._clock = stream, every, clock
        self._shown: dict[str, tuple[float, str]] = {}
        self._run_bars = RunBars(stream, clock)

    def print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def show(self, name: str, done: float, total: float | None, words: str) -> None:
        """Prints `NAME: WORDS` the first time, at the end, and at intervals if the progress has changed.

        total: the amount at the end; None: not known. words: only the part before two spaces counts as a change.
        """
        if self._every is None:
            return
        now = self._clock()
        last, before = self._shown.get(name, (float("-inf"), ""))
        first = words.partition("  ")[0]
        if first != before and (now - last >= self._every or (total is not None and done >= total)):
            self._shown[name] = now, first
            self.print(f"{name}: {words}" if name else words)

    def show_run_bars(self, states: Sequence[bytes]) -> None:
        self._run_bars.show(states)


class Bars:
    """Draws progress bars in a terminal, one for each name, below the lines that are printed; keep: at the end too."""

    def __init__(self, stream: TextIO, *, keep: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn
        from rich.table import Column
        from rich.text import Text

        class WithStates(Progress):
            """The launcher's bars, and below them the newest bar that the run itself prints."""

            state = ""

            def get_renderables(self) -> Iterator[RenderableType]:
                yield from super().get_renderables()
                if self.state:
                    yield Text.from_ansi(coloured(self.state), no_wrap=True, overflow="ellipsis")

        self.console = Console(file=raw(stream), highlight=False)
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # else a long text would displace the bar
        words = TextColumn("{task.fields[words]}", table_column=rest, markup=False)
        self.bars = WithStates(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), words,
            console=self.console, transient=not keep, expand=True,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def print(self, text: str) -> None:
        """Prints a text above the bars. Escape sequences other than colours are removed."""
        from rich.text import Text

        self.console.print(Text.from_ansi(coloured(text)), soft_wrap=True)  # not wrapped, so that it can be copied

    def show(self, name: str, done: float, total: float | None, words: str) -> None:
        name, words = one_line(name), one_line(words)
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(name, total=total, words=words)
        self.bars.update(self._tasks[name], completed=done, total=total, words=words)

    def show_run_bars(self, states: Sequence[bytes]) -> None:
        self.bars.state = states[-1].decode(errors="replace") if states else ""


@contextlib.contextmanager
def shown(stream: TextIO | None = None, *, every: float | None = EVERY, keep: bool = False) -> Iterator[Lines | Bars]:
    """Yields Bars if a stream (None: stdout) is a terminal, else Lines, `every` so many seconds (None: never)."""
    stream = sys.stdout if stream is None else stream
    if not on_terminal(stream):
        yield Lines(stream, every)
        return
    bars = Bars(stream, keep=keep)
    with bars.bars:
        yield bars
