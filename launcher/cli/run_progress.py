"""How far a run is; shows progress: as bars in a terminal, elsewhere as lines at intervals.

All progress bars are made here: those of trainings, sweeps and downloads. Without a terminal, only the text after the
bar is printed. rich omits colours if NO_COLOR is set.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from launcher.errors import UnavailableError, is_transient
from launcher.formatting import brief, coloured, long_size, number, one_line, raw
from launcher.runs.events import Breakpoint, Continued, Progress, Restart, Saved, Started, every, known

if TYPE_CHECKING:
    from rich.console import RenderableType

    from launcher.monitoring.run_status import RunStatus

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


# -- How far a run is: steps, rate, time left and checkpoints, from its events


# The keys of `status --json` about progress. A value is None if it is unknown or does not apply.
PROGRESS: Mapping[str, Any] = {
    "step": None,  # steps done, as the program reports it
    "steps": None,  # the same: the total
    "percent": None,  # of steps done, rounded down; 100 only when all are done
    "rate": None,  # steps per second of the later half of the attempt's steps, with saves and evaluations
    "needs": None,  # seconds that the remaining steps will take at this rate
    "elapsed": None,  # seconds since the last attempt started or, if that has ended, its duration
    "left": None,  # seconds left of the attempt's wall time
    "checkpoint": None,  # steps done in the last checkpoint
    "checkpoint_age": None,  # seconds since the last checkpoint was written
    "breakpoints": [],  # the ranks that wait at a breakpoint; `needs` is then unknown
}


def progress_of(seen: RunStatus, now: float) -> dict[str, Any]:
    """Returns the progress of a run, with the keys of PROGRESS."""
    events, running, found = seen.history.events, seen.state.value == "running", dict(PROGRESS)
    if rate := rate_of([(event.time, event.step) for event in every(events, Progress)]):
        found["rate"] = round(rate, 4)
    at = at_breakpoints(events) if seen.plan.debugs and running else {}
    found["breakpoints"] = [
        {"rank": rank, "host": each.host, "where": each.where, "seconds": max(0, int(now - each.time))}
        for rank, each in sorted(at.items())
    ]
    if (progress := seen.progress) is not None:
        found["step"] = step = int(progress.step)
        if (steps := int(progress.total)) > 0:
            found |= {"steps": steps, "percent": min(100, 100 * step // steps)}
            if running and rate and not at:
                found["needs"] = max(0, round((steps - step) / rate - (now - progress.time)))
    found["elapsed"] = elapsed(events, now, over=seen.state.over or seen.state.value == "queued")
    saved = (event.step, event.time) if (event := seen.history.last(Saved)) else None
    if saved is None and seen.history.attempt is not None and seen.state.value != "done":
        saved = saved_before(seen.plan.checkpoint.dir)
    if saved is not None:
        found |= {"checkpoint": saved[0], "checkpoint_age": max(0, int(now - saved[1]))}
    return {**found, "left": _time_left(seen, now, saved is not None)}


def elapsed(events: Sequence[Mapping[str, Any]], now: float, *, over: bool) -> int | None:
    """Returns for how many seconds an attempt has run; None: unknown. The clock of its node may be ahead of ours."""
    return max(0, int((events[-1]["time"] if over else now) - events[0]["time"])) if events else None


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


def _time_left(seen: RunStatus, now: float, saves: bool) -> int | None:
    # Returns the seconds left of the attempt's wall time; None: nothing ends the run when that is over
    if seen.state.value != "running":
        return None
    if seen.left is not None:  # the limit may have changed since the submission
        return seen.left
    started = seen.history.last(Started)
    if started is None or not (seen.plan.queued or saves or seen.plan.program_resumes):
        return None
    return max(0, int(started.time + seen.plan.time - now))


def at_breakpoints(events: Iterable[Mapping[str, Any]]) -> dict[int, Breakpoint]:
    """Returns, by rank, the `breakpoint` events of an attempt's ranks that wait at a breakpoint now."""
    found: dict[int, Breakpoint] = {}
    for event in known(events):
        if isinstance(event, Breakpoint):
            found[event.rank] = event
        elif isinstance(event, Continued):
            found.pop(event.rank, None)
        elif isinstance(event, Restart):  # the processes of the round before are gone
            found.clear()
    return found


def saved_before(folder: str) -> tuple[int, float] | None:
    """Returns step and mtime (since the epoch) of a folder's newest checkpoint, by names alone; None: none is seen."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        steps = {int(each.name[5:]): each for each in entries if each.name[:5] == "step-" and each.name[5:].isdecimal()}
        if steps:
            return max(steps), steps[max(steps)].stat().st_mtime
    return None


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
            width = shutil.get_terminal_size().columns - 1
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
