"""How far something is: a bar where there is a terminal, a line now and then where there is none.

The one place that makes bars, for a training, a sweep, a download and `status --watch`. What stands behind a bar is the
same text that is printed without one. rich leaves colours out where NO_COLOR is set.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

from launcher.cli.screen import raw
from launcher.escapes import coloured, one_line
from launcher.formatting import brief, long_size, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.progress_bar import ProgressBar

EVERY = 10.0  # seconds between two lines about the same thing where there is no terminal
WINDOW = 30.0  # seconds over which a rate is taken
KNOWN = ("time", "event", "step", "total", "writer")  # of a progress event; the others are the workload's own


def on_terminal(stream: TextIO) -> bool:
    """Whether bars can be drawn there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Rate:
    """How fast a number grows, over the last while. Pure: moments are given to it."""

    def __init__(self, window: float = WINDOW) -> None:
        """
        Args:
            window: seconds that count.
        """
        self._window = window
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, moment: float, done: float) -> None:
        """It was `done` then, in seconds on any clock; what is no later than what is known already says nothing new."""
        if self._seen and moment <= self._seen[-1][0]:
            return
        if self._seen and done < self._seen[-1][1]:  # it has begun anew
            self._seen.clear()
        self._seen.append((moment, done))
        while len(self._seen) > 2 and moment - self._seen[1][0] >= self._window:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        """None: nobody knows yet."""
        if len(self._seen) < 2:
            return None
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if last > first else None

    def left(self, total: float) -> float | None:
        """Seconds until it is `total`, if it goes on like that."""
        rate = self.per_second
        return None if rate is None else max(0.0, total - self._seen[-1][1]) / rate


# -- words


def _left(seconds: float | None) -> list[str]:
    return [] if not seconds else [f"{brief(seconds)} left"]


def of_training(progress: Mapping[str, Any], rate: Rate) -> str:
    """`120/2200  24.1 steps/s  26,850 images/s  1m left  loss 0.0021`, from the last event of progress. Pure.

    Values of the workload that end in `_per_s` are rates of samples; their words are the workload's.
    """
    values = {key: value for key, value in progress.items() if key not in KNOWN}
    speed = rate.per_second
    pace = "" if speed is None else f"{number(speed, 3)} steps/s" if speed >= 0.1 else f"{number(1 / speed, 3)} s/step"
    samples = [f"{number(values.pop(key), 3)} {key[:-6]}/s" for key in list(values) if _is_rate(key, values[key])]
    others = [f"{key} {number(value, 3) if isinstance(value, float) else value}" for key, value in values.items()]
    total = progress["total"]
    done = f"{progress['step']}/{total}" if total > 0 else f"{progress['step']}"
    return "  ".join([done, *filter(None, [pace]), *samples, *(_left(rate.left(total)) if total > 0 else ()), *others])


def _is_rate(key: str, value: object) -> bool:
    return key.endswith("_per_s") and isinstance(value, (int, float))


def of_sweep(words: str, rate: Rate, total: int) -> str:
    """`3/15 done, 2 running, 10 queued  4m left`. Pure."""
    return "  ".join([words, *_left(rate.left(total))])


def of_download(done: int, total: int, rate: Rate) -> str:
    """`3.2 MiB of 9.9 MiB  1.1 MiB/s  6s left`. Pure."""
    speed = rate.per_second
    told = [] if speed is None else [f"{long_size(speed)}/s"]
    return "  ".join([f"{long_size(done)} of {long_size(total)}", *told, *_left(rate.left(total))])


# -- what is shown


class StandingBars:
    """Bars of a run's own, which have not ended their line: the newest one in the last line of a terminal, and
    elsewhere a line now and then. Without rich, which takes longer to load than a log to show."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            stream: where what the run prints is shown too.
            clock: tells the time in seconds.
        """
        self._stream, self._clock = raw(stream), clock
        self._in_place = on_terminal(stream)
        self._told, self._when = "", clock()

    def show(self, states: Sequence[bytes]) -> None:
        """Shows the newest of these."""
        state = one_line(states[-1].decode(errors="replace")) if states else ""
        if state == self._told:
            return
        if self._in_place:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{state[:width]}\x1b[K")
        elif not state or self._clock() - self._when < EVERY:
            return
        else:
            self._stream.write(f"{state}\n")
        self._stream.flush()
        self._told, self._when = state, self._clock()

    def clear(self) -> None:
        """Makes room for a line."""
        if self._in_place and self._told:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._told = ""


class Lines:
    """Where there is no terminal: now and then a line."""

    def __init__(self, stream: TextIO, every: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            stream: where to print.
            every: seconds between two lines about the same thing; None: only `print` prints.
            clock: tells the time in seconds.
        """
        self._stream, self._every, self._clock = stream, every, clock
        self._shown: dict[str, tuple[float, str]] = {}
        self._standing = StandingBars(stream, clock)

    def print(self, text: str) -> None:
        """A line of its own."""
        print(text, file=self._stream, flush=True)

    def show(self, name: str, done: float, total: float | None, words: str) -> None:
        """How far `name` is: told at first, at its end, and now and then if more than a rate has changed."""
        if self._every is None:
            return
        now = self._clock()
        last, told = self._shown.get(name, (float("-inf"), ""))
        first = words.partition("  ")[0]
        if first != told and (now - last >= self._every or (total is not None and done >= total)):
            self._shown[name] = now, first
            self.print(f"{name}: {words}" if name else words)

    def stand(self, states: Sequence[bytes]) -> None:
        """Bars of a run's own."""
        self._standing.show(states)


class Bars:
    """On a terminal: a bar for each name below what is printed."""

    def __init__(self, stream: TextIO, *, keep: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn
        from rich.table import Column
        from rich.text import Text

        class WithStates(Progress):
            """Bars, and below them the newest of the run's own."""

            state = ""

            def get_renderables(self) -> Iterator[RenderableType]:
                yield from super().get_renderables()
                if self.state:
                    yield Text.from_ansi(coloured(self.state), no_wrap=True, overflow="ellipsis")

        self.console = Console(file=raw(stream), highlight=False)
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # or the bar would be what there is no room for
        words = TextColumn("{task.fields[words]}", table_column=rest, markup=False)
        self.bars = WithStates(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), words,
            console=self.console, transient=not keep, expand=True,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def print(self, text: str) -> None:
        """A text above the bars, as it is but for its colours."""
        from rich.text import Text

        self.console.print(Text.from_ansi(coloured(text)), soft_wrap=True)  # a line stays one, to be copied

    def show(self, name: str, done: float, total: float | None, words: str) -> None:
        """How far `name` is; None: nobody knows of how much."""
        name, words = one_line(name), one_line(words)
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(name, total=total, words=words)
        self.bars.update(self._tasks[name], completed=done, total=total, words=words)

    def stand(self, states: Sequence[bytes]) -> None:
        """Bars of a run's own."""
        self.bars.state = states[-1].decode(errors="replace") if states else ""


@contextlib.contextmanager
def shown(stream: TextIO | None = None, *, every: float | None = EVERY, keep: bool = False) -> Iterator[Lines | Bars]:
    """What the stream can show.

    Args:
        stream: where to; default: stdout.
        every: where it is no terminal, seconds between two lines about the same thing; None: none are printed.
        keep: leave bars standing at the end.
    """
    stream = sys.stdout if stream is None else stream
    if not on_terminal(stream):
        yield Lines(stream, every)
        return
    bars = Bars(stream, keep=keep)
    with bars.bars:
        yield bars


def still(done: float, total: float, width: int) -> ProgressBar:
    """A bar that stands still, for a cell of a table."""
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=max(total, 1), completed=min(done, total), width=width)


def bar(stream: TextIO, done: float, total: float, width: int = 60) -> None:
    """One bar that stands still, if the stream is a terminal."""
    if on_terminal(stream):
        from rich.console import Console

        Console(file=raw(stream)).print(still(done, total, width), "")
