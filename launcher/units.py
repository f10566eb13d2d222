"""Parses what users write and schedulers print: times, sizes and ranges of numbers. `formatting` formats them."""

from __future__ import annotations

import re
import time

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<fields>\d+(?::\d+){0,2})")
_UNITS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}

TIME_FORMS = "90 (minutes), 90m, 1h30m, 01:30:00 or 1-12:00:00"


def parse_time(text: str, *, zero: bool = False) -> int:
    """Returns a wall time in seconds; raises ValueError, for zero too, unless `zero` may be.

    Accepted are Slurm's formats (man sbatch, --time), where a number is minutes, and `2d`, `1h30m`, `90m`, `45s`.
    """
    text = text.strip()
    if match := _CLOCK.fullmatch(text):
        seconds = _clock(match["days"], [int(part) for part in match["fields"].split(":")], text)
    elif (match := _UNITS.fullmatch(text.lower())) and text:
        days, hours, minutes, secs = (int(group or 0) for group in match.groups())
        seconds = ((days * 24 + hours) * 60 + minutes) * 60 + secs
    else:
        raise ValueError(f"{text!r} is not a time: write it as {TIME_FORMS}")
    if seconds == 0 and not zero:
        raise ValueError(f"{text!r} is zero: give a longer time")
    return seconds


def _clock(days: str | None, fields: list[int], text: str) -> int:
    # days-hours[:minutes[:seconds]], hours:minutes:seconds or minutes[:seconds]: only what is in front has no limit
    units = ("hours", "minutes", "seconds") if days is not None or len(fields) == 3 else ("minutes", "seconds")
    values = dict(zip(units, fields, strict=False))
    for unit, value in list(values.items())[days is None :]:
        if value >= (limit := 24 if unit == "hours" else 60):
            raise ValueError(f"{text!r} has {value} {unit}, and {limit} is too many: write it as {TIME_FORMS}")
    minutes = (int(days or 0) * 24 + values.get("hours", 0)) * 60 + values.get("minutes", 0)
    return minutes * 60 + values.get("seconds", 0)


def parse_size(text: str) -> int:
    """Returns `512`, `64K`, `1.5M`, `16G`, `16GB`, `16GiB` in bytes (powers of 1024); raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write it as 512K, 64M or 16G")
    whole, _, fraction = match[1].partition(".")
    power = 1024 ** _POWERS[match[2].upper()]
    size = int(whole) * power + int(fraction or 0) * power // 10 ** len(fraction)  # integers, since floats would round
    if size == 0:
        raise ValueError(f"{text!r} is zero: give a size")
    return size


def parse_memory(text: str) -> int:
    """Like `parse_size`; raises ValueError without a unit, too: Slurm takes a plain number for MiB, PBS for bytes."""
    if re.fullmatch(r"[\d.]+", number := text.strip()):
        raise ValueError(f"{text!r} has no unit: write {number}G, or {number}M")
    return parse_size(text)


def size_or_none(text: str) -> int | None:
    """Like `parse_size`, for what a scheduler prints; None for zero and for any other text (`-`)."""
    try:
        return parse_size(text)
    except ValueError:
        return None


def time_or_none(text: str) -> int | None:
    """Like `parse_time`, for what Slurm prints, and zero may be; None for any other text (UNLIMITED, NONE)."""
    try:
        return parse_time(text, zero=True)
    except ValueError:
        return None


def seconds_or_none(text: str) -> int | None:
    """Parses Grid Engine's `[[hours:]minutes:]seconds` to seconds; None for any other text (INFINITY)."""
    if not re.fullmatch(r"(?=.*\d)\d*(:\d*){0,2}(\.\d+)?", text):
        return None
    total = 0
    for part in text.partition(".")[0].split(":"):
        total = 60 * total + int(part or 0)
    return total


def parse_ranges(text: str, most: int = 10**6) -> tuple[int, ...]:
    """Returns the numbers in `0-3,7`, in that order; raises ValueError, for more than `most` too."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{part!r} is not a number, or a range of them: write 3 or 0-3,7")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"{part.strip()} is an empty range: write {high}-{low}")
        if len(found) + high - low >= most:
            raise ValueError(f"{text[:40]!r} names more than {most} numbers")
        found += range(low, high + 1)
    return tuple(found)


def parse_local_time(text: str) -> float | None:
    """Parses a local time in Slurm's format, `2026-11-21T21:10:00`, to seconds since the epoch; else returns None."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
