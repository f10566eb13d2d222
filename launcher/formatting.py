"""Text for people: numbers, names, what a terminal must not execute or cannot show, and a line of the log."""

from __future__ import annotations

import contextlib
import io
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO, cast

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m|\r)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # surrogates as well


def clean(text: str) -> str:
    """Removes escape sequences and control characters, except line breaks and tabs. For text from other programs."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def coloured(text: str) -> str:
    """Like `clean`, but keeps colours (SGR) and carriage returns, which are harmless."""
    return "".join(part if place % 2 else clean(part) for place, part in enumerate(_COLOURS.split(text)))


def one_line(text: str) -> str:
    """Like `clean`, but line breaks and tabs become spaces, so that the text fits into one row of a table."""
    return clean(text.replace("\n", " ").replace("\t", " "))


def cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


# -- Formats sizes, times, numbers and lists of numbers. `units` parses what users write


_UNITS = ("", "K", "M", "G", "T", "P")  # powers of 1024


def plural(number: int, what: str) -> str:
    """Formats a count with its noun: `1 node`, `2 nodes`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def number(value: float, digits: int = 4) -> str:
    """Formats a number with `digits` significant digits, its integer part in full: `0.9194`, `12,345`, `1.2e-07`."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.{digits}g}"


def ranges(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges: `0-2,7` for 0, 1, 2, 7. `units.parse_ranges` parses the result."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], each]
        else:
            parts.append([each])
    return ",".join("-".join(map(str, part)) for part in parts)


def name_ranks(numbers: Iterable[int]) -> str:
    """Formats rank numbers: `rank 3`, `ranks 0-2,5`."""
    found = sorted(numbers)
    return f"rank{'' if len(found) == 1 else 's'} {ranges(found)}"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested values, so that their names become dotted, such as `test.accuracy`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


# -- times


def format_time(seconds: int) -> str:
    """Formats a time as `[days-]hours:minutes:seconds`, Slurm's format."""
    days, rest = divmod(seconds, 86400)
    return (f"{days}-" if days else "") + format_hours(rest)


def format_hours(seconds: int) -> str:
    """Formats a time as `hours:minutes:seconds`, also with 24 hours or more: PBS's format of a wall time."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def exact_time(seconds: int) -> str:
    """Formats a time exactly, as the config key `time` takes it: `12h`, `1h30m`, `45s`."""
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{value}{unit}" for value, unit in parts if value)


def brief(seconds: float | None) -> str:
    """Formats a time roughly, in about five characters: `45s`, `12m`, `3h05m`, `2d04h`; None: `-`."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small:02}{name}"
    return f"{whole // 60}m" if whole >= 60 else f"{whole}s"


# -- sizes


def format_size(size: int) -> str:
    """Formats a size in bytes exactly, as shortly as possible: 17179869184 -> `16G`."""
    power = max((each for each in range(len(_UNITS)) if size and size % 1024**each == 0), default=0)
    return f"{size // 1024**power}{_UNITS[power]}"


def rough_size(size: float) -> str:
    """Formats a size in bytes, rounded, as the config key `mem` takes it: 325058670 -> `310M`, 5294 -> `5.2K`."""
    return "".join(_scaled(size))


def long_size(size: float | None) -> str:
    """Formats a size in bytes, rounded, with the full name of its unit: `512 B`, `4 KiB`, `1.5 MiB`; None: `-`."""
    if size is None:
        return "-"
    value, unit = _scaled(size)
    return f"{value} {unit}iB" if unit else f"{value} B"


def _scaled(size: float) -> tuple[str, str]:
    power = next((each for each in range(len(_UNITS) - 1) if size < 1024 ** (each + 1)), len(_UNITS) - 1)
    value = size / 1024**power
    return f"{value:.1f}".removesuffix(".0") if value < 99.95 else f"{value:.0f}", _UNITS[power]


# -- measurements


_SI = (("n", 1e-9), ("µ", 1e-6), ("m", 1e-3), ("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))


def si(value: float | None, unit: str) -> str:
    """Formats a measured value with three digits, in powers of 1000: `12.3 µs`, `1.18 GB/s`; None: `-`."""
    if value is None:
        return "-"
    scale, name = si_unit(value, unit)
    return f"{three_digits(value / scale)} {name}"


def si_unit(value: float, unit: str) -> tuple[float, str]:
    """Returns the power of 1000 by which a value is best divided, and the unit's name then. Seconds have no `ks`."""
    known = [each for each in _SI if unit != "s" or each[1] <= 1]
    prefix, factor = next((each for each in known if value < 999.5 * each[1]), known[-1])
    return factor, prefix + unit


def three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 and value != int(value) else f"{value:.0f}"


# -- Prints the launcher's own lines, `launcher: ...`, into the output of a job or a rank


def log_line(text: str, stream: TextIO | None = None) -> None:
    """Prints the line `launcher: TEXT` to a stream (None: stderr), whatever errors that has."""
    with contextlib.suppress(OSError):
        print(f"launcher: {text}", file=stream or sys.stderr, flush=True)


# -- Removes terminal escape sequences from everything that commands print: in names of folders, logs and the output of
# schedulers they could change the terminal's title, its clipboard, or the lines above


class Screen:
    """A text stream that removes escape sequences from text written to it. All other methods are those of `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def cleaned() -> Iterator[None]:
    """Inside a `with` block, replaces sys.stdout and sys.stderr by Screens.

    What the encoding of the terminal lacks is replaced: runs print characters that Latin-1 does not have.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")  # with LC_ALL=C Python sets surrogateescape
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", Screen(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """Returns the original stream behind a Screen, to which escape sequences can be written."""
    return stream.stream if isinstance(stream, Screen) else stream


def write_output(data: bytes) -> None:
    """Writes a run's output to stdout: its colours are kept on a terminal; elsewhere every byte is kept."""
    stream = raw(sys.stdout)
    if stream.isatty():
        stream.write(coloured(data.decode(errors="replace")))
    else:
        stream.buffer.write(data)
