"""Reads and writes event files: one JSON object per line. Each file has one writer, and is read while it grows."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher import bounds
from launcher.files import run_files
from launcher.files.json_types import LATEST, misfit
from launcher.files.run_files import naming
from launcher.files.shared_files import retry_read, unwrap
from launcher.formatting import long_size
from launcher.runs import event_json, events
from launcher.runs.event_json import Event

_END_BYTES = 1 << 12  # bytes that `read_ends` reads at the beginning and at the end of a file
LONGEST_LINE = 1 << 20  # bytes; a longer line is invalid
MOST_LINES = 1 << 18  # lines that are parsed of a piece that was read: half at its beginning and half at its end
_JOINT_PARSE_LIMIT = 1 << 22  # bytes; fewer bytes of lines are parsed as one JSON list


def append(path: Path, event: Event, *, sync: bool = False) -> None:
    """Appends one event to an event file, in a single write, so that readers see the whole line or nothing.

    If the disk is full, the incomplete line is removed again.

    Args:
        path: the file.
        event: the event; if its time is 0, the present time is written.
        sync: whether to wait until the line is on disk.

    Raises:
        OSError: the line could not be written completely.
    """
    line = json.dumps(entry(event)) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size if sync else 0
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # an earlier line was cut off by a full disk
            line = "\n" + line
        with naming(path):
            left = data = line.encode()
            try:
                while left:  # on a full disk the first write is short, and the second one fails
                    left = left[os.write(descriptor, left) :]
            except OSError:
                _take_back(descriptor, data[: len(data) - len(left)])
                raise
            if sync:
                os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_back(descriptor: int, part: bytes) -> None:
    """Removes `part`, an incomplete line, from the end of a file: the next line would be appended to it and be lost."""
    begin = os.fstat(descriptor).st_size - len(part)
    if part and os.pread(descriptor, len(part) + 1, begin) == part:
        os.ftruncate(descriptor, begin)


def entry(event: Event) -> dict[str, Any]:
    """Returns an event as the dict that is written to its file; if its time is 0, the dict has the present time."""
    return {"time": round(event.time or time.time(), 6), "event": event.event, **event_json.values(event)}


def read(path: Path | str, end: int | None = None, *, retry_seconds: float | None = None) -> Iterator[dict[str, Any]]:
    """Yields the events of one file as dicts. Invalid lines, and a last line still being written, are left out.

    Of a file with more than `bounds.EVENTS_BYTES` bytes or MOST_LINES lines, only the beginning and end are read.

    Args:
        path: the file, which need not exist.
        end: number of bytes to read at the file's end; None: the whole file.
        retry_seconds: how long to retry transient errors; see `shared_files.retry_read`.

    Raises:
        UnavailableError: the file cannot be read now.
        RunError: the path is not a regular file.
    """
    lines = [line for line in _lines(path, end, retry_seconds) if 0 < len(line) <= LONGEST_LINE]
    entries: Iterable[Any] = map(_parsed, lines)  # one at a time, so that a large file takes little memory
    if sum(map(len, lines)) <= _JOINT_PARSE_LIMIT:
        with contextlib.suppress(ValueError, RecursionError):
            entries = json.loads(b"[" + b",".join(lines) + b"]")  # takes half as long
    yield from (entry for entry in entries if _misfit(entry) is None)


def read_on(path: Path | str, offset: int, *, retry_seconds: float | None = None) -> tuple[list[dict[str, Any]], int]:
    """Returns the valid events of a file from an offset on, as dicts, and the offset for the next call.

    A last line that is still being written is left for the next call.

    Args:
        path: the file, which need not exist.
        offset: first byte to read.
        retry_seconds: how long to retry transient errors; see `shared_files.retry_read`.

    Raises:
        UnavailableError: the file cannot be read now.
        RunError: the path is not a regular file.
    """
    found = unwrap(retry_read(
        lambda: run_files.read_range(path, offset, None, bounds.EVENTS_BYTES), path, retry_seconds=retry_seconds
    ))  # fmt: skip
    if found is None:
        return [], offset
    data, start = found
    end = data.rfind(b"\n") + 1
    lines = [line for line in data[:end].split(b"\n") if 0 < len(line) <= LONGEST_LINE]
    return [entry for entry in map(_parsed, lines) if _misfit(entry) is None], start + end


def problems(path: Path | str) -> list[str]:
    """Returns a message for each invalid line of a file. The last line is skipped, because it may still grow.

    Raises:
        UnavailableError, RunError: as for `read`.
    """
    found = []
    size = unwrap(retry_read(lambda: os.lstat(path).st_size, path)) or 0
    if size > bounds.EVENTS_BYTES:  # the middle is not read, so line numbers are not known
        return [f"{path} has {long_size(size)}: only its beginning and its end are read"]
    for number, line in enumerate(_lines(path, None, None)[:-1], 1):
        why = None
        if len(line) > LONGEST_LINE:
            why = f"it has more than {long_size(LONGEST_LINE)}"
        elif line:
            why = _misfit(_parsed(line))
        if why is not None:
            found.append(f"{path}, line {number}: {why}")
    return found


def read_ends(path: str) -> list[dict[str, Any]]:
    """Returns the first and last event and the first and last `progress` event of a file: enough to compute a rate.

    Only _END_BYTES bytes at each end of the file are searched.

    Raises:
        UnavailableError, RunError: as for `read`.
    """
    parts = unwrap(retry_read(lambda: run_files.read_ends(path, _END_BYTES, _END_BYTES), path))
    if parts is None:
        return []
    lines = b"\n".join(parts).split(b"\n")
    first, place = _until_progress(lines)
    last, _ = _until_progress(lines[:place:-1])
    return first + last[::-1]


def first_and_last(path: Path | str) -> list[dict[str, Any]]:
    """Returns the first and last valid event of a file; twice the same one if there is one, and an empty list if none.

    Raises:
        UnavailableError, RunError: as for `read`.
    """
    parts = unwrap(retry_read(lambda: run_files.read_ends(path, _END_BYTES, _END_BYTES), path)) or []
    lines = [line for part in parts for line in part.split(b"\n")]

    def valid(lines: Iterable[bytes]) -> dict[str, Any] | None:
        return next((event for event in map(_parsed, lines) if _misfit(event) is None), None)

    return [event for event in (valid(lines), valid(reversed(lines))) if event is not None]


def _lines(path: Path | str, end: int | None, retry_seconds: float | None) -> list[bytes]:
    """Returns the lines of a file, or of its last `end` bytes; in the latter case the first line may be incomplete."""
    first, last = (bounds.EVENTS_BYTES // 2,) * 2 if end is None else (0, end)
    parts = unwrap(retry_read(lambda: run_files.read_ends(path, first, last), path, retry_seconds=retry_seconds))
    lines: list[bytes] = []
    for part in parts or ():
        if part.count(b"\n") > MOST_LINES:
            lines += [*part.split(b"\n", MOST_LINES // 2)[:-1], *part.rsplit(b"\n", MOST_LINES // 2)[1:]]
        else:
            lines += part.split(b"\n")
    return lines


def _until_progress(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Returns the first valid event and the first `progress` event, which may be the same one, and the latter's index.

    Without a `progress` event, the index is the number of lines.
    """
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        if line and (not found or b'"progress"' in line) and _misfit(event := _parsed(line)) is None:
            found.append(event)
            if event["event"] == events.Progress.event:
                return found, number
    return found, len(lines)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None


def _misfit(event: object) -> str | None:
    """Returns why a value is not a valid event; None: it is valid."""
    if not isinstance(event, dict):
        return "it is no event"
    kind, moment = event.get("event"), event.get("time")
    if type(kind) is not str:
        return misfit(kind, str, "event")
    if not isinstance(moment, (int, float)) or isinstance(moment, bool) or not 0 <= moment < LATEST:
        return "time is no time"
    try:
        run_files.require_json_bounds(event)
    except ValueError as error:
        return str(error)
    return misfit(event, event_json.TYPES[kind], "") if kind in event_json.TYPES else None  # else of a newer version
