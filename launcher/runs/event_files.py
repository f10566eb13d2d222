"""Reads and writes event files: one JSON object per line. Each file has one writer, and is read while it grows."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from launcher import io_bounds
from launcher.files import safe_io
from launcher.files.json_types import LATEST, misfit
from launcher.files.retried_reads import Wrong, retry_read, unwrap
from launcher.formatting import long_size
from launcher.runs import events
from launcher.runs.events import Event

_END_BYTES = 1 << 12  # bytes that `read_ends` reads at first at the beginning and at the end of a file
_CHECKED_BYTES = 1 << 14  # bytes that `problems` checks at the beginning and at the end of a file
_KIND_BYTES = 64  # the first bytes of a line, which have its kind (`entry`)
_PIECES = 64  # most pieces that are read of a file that is too large to be read whole
_PIECE_BYTES = 1 << 12  # least bytes of such a piece
# Kinds of events that are written again and again, as they are in a line.
_SERIES = tuple(f'"{kind.event}"'.encode() for kind in (events.Progress, events.Saved))
_JOINT_PARSE_LIMIT = 1 << 22  # bytes; fewer bytes of lines are parsed as one JSON list


def append(path: Path, event: Event, *, sync: bool = False) -> None:
    safe_io.append(path, line_of(event), sync=sync)


def line_of(event: Event) -> str:
    """Returns an event as the line of a file. An event without a time gets the present one.

    Raises TypeError (what is no JSON) or ValueError (the event exceeds a bound of events or of JSON).
    """
    return safe_io.json_text(entry(event), io_bounds.EVENT_BYTES, lines=False) + "\n"


def entry(event: Event) -> dict[str, Any]:
    """Returns an event as the dict that is written to its file; if its time is 0, the dict has the present time."""
    return {"time": round(event.time or time.time(), 6), "event": event.event, **events.values(event)}


def read(
    path: Path | str, *, retry_seconds: float | None = None, without: type[Event] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the events of one file as dicts. Invalid lines, and a last line still being written, are left out.

    Of a file with more than io_bounds.EVENTS_BYTES or EVENTS_LINES, it reads a part: events that are evenly
    apart, the first and the last ones among them. without: a kind of events to leave out.
    Raises RunError: the path is not a regular file.
    """
    pieces = unwrap(retry_read(lambda: _pieces(path), path, retry_seconds=retry_seconds))
    lines = [line for line in _lines(pieces or ()) if 0 < len(line) <= io_bounds.EVENT_BYTES]
    if without is not None:
        kind = f'"event": "{without.event}"'.encode()
        lines = [line for line in lines if line.find(kind, 0, _KIND_BYTES) < 0]
    entries: Iterable[Any] = map(_parsed, lines)  # one at a time, so that a large file takes little memory
    if sum(map(len, lines)) <= _JOINT_PARSE_LIMIT:
        with contextlib.suppress(ValueError, RecursionError):
            entries = json.loads(b"[" + b",".join(lines) + b"]")  # takes half as long
    yield from (entry for entry in entries if _misfit(entry) is None)


def read_on(path: Path | str, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the valid events from an offset on, and the offset for the next call.

    Raises RunError: the path is not a regular file.
    """
    most = io_bounds.EVENTS_BYTES
    found = unwrap(retry_read(lambda: safe_io.read_range(path, offset, offset + most, most), path))
    if found is None:
        return [], offset
    data, start = found
    end = data.rfind(b"\n") + 1 or len(data) // most * most  # that is no event
    lines = [line for line in data[:end].split(b"\n") if 0 < len(line) <= io_bounds.EVENT_BYTES]
    return [entry for entry in map(_parsed, lines) if _misfit(entry) is None], start + end


def problems(path: Path | str, *, ends: bool = False) -> list[str]:
    """Returns a message for each invalid line but the last, which may grow; `ends`: of a long file's ends only."""
    for checked in (_CHECKED_BYTES, 2 * io_bounds.EVENT_BYTES):  # more if a line is longer
        outcome = retry_read(
            lambda: safe_io.read_ends(path, checked, checked) if ends else _pieces(path),  # noqa: B023
            path,
        )
        if isinstance(outcome, Wrong):
            return [outcome.reason]
        pieces = unwrap(outcome)
        if all(b"\n" in piece for piece in pieces or ()):
            break
    found = []
    for part, piece in enumerate(pieces or ()):
        lines = piece.split(b"\n")
        lines = lines[part and ends : -1] if len(lines) > 1 or len(piece) <= io_bounds.EVENT_BYTES else lines
        for number, line in enumerate(lines, 1):
            why = None
            if len(line) > io_bounds.EVENT_BYTES:
                why = f"it has more than {long_size(io_bounds.EVENT_BYTES)}"
            elif line:
                why = _misfit(_parsed(line))
            if why is not None:
                found.append(f"{path}, {'a line' if part else f'line {number}'}: {why}")
    return found


def read_ends(path: str) -> list[dict[str, Any]]:
    """Returns the first and last event of a file's ends and, for rates, of each series (`progress`, `saved`)."""
    return _ends(path, _SERIES)


def first_and_last(path: Path | str, *, retry_seconds: float | None = None) -> list[dict[str, Any]]:
    """Returns the first and last valid event of a file: twice the same one if there is one; an empty list if none."""
    found = _ends(path, (), retry_seconds)
    return [found[0], found[-1]] if found else []


def _ends(path: Path | str, series: Sequence[bytes], retry_seconds: float | None = None) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        with safe_io.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            first, after = _end(file, 0, size, series)
            last, _ = _end(file, after, size, series, backwards=True)
            return first + last[::-1]

    return unwrap(retry_read(found, path, retry_seconds=retry_seconds)) or []


def _end(
    file: IO[bytes], begin: int, end: int, series: Sequence[bytes], *, backwards: bool = False
) -> tuple[list[dict[str, Any]], int]:
    # Returns the events from one end of a range on (`_until_series`), and the bytes of their lines
    length, most = _END_BYTES, min(2 * (io_bounds.EVENT_BYTES + 1), end - begin)
    while True:  # until the lines are read, however long they are
        start, stop = (max(begin, end - length), end) if backwards else (begin, min(begin + length, end))
        file.seek(start)
        lines = file.read(stop - start).split(b"\n")
        lines = lines[start > begin : len(lines) - (stop < end)]
        found, place = _until_series(lines[::-1] if backwards else lines, series)
        if place < len(lines) or length >= most:
            return found, sum(len(line) + 1 for line in lines[: place + 1])
        length = min(8 * length, most)


def _pieces(path: Path | str) -> list[bytes]:
    with safe_io.open_regular(path) as file:
        size, most = os.fstat(file.fileno()).st_size, io_bounds.EVENTS_BYTES
        if size <= most:
            return [file.read(size)]
        count = max(2, min(_PIECES, most // _PIECE_BYTES))
        pieces: list[bytes] = []
        after = 0
        for number in range(count):
            last = number == count - 1
            for length in (most // count, 2 * io_bounds.EVENT_BYTES):  # more if that has no whole line
                begin = max(after, size - length if last else number * size // count)
                file.seek(begin)
                data = file.read(length)
                if data.find(b"\n", data.find(b"\n") + 1) >= 0:  # two lines end in it
                    break
            first = data.find(b"\n") + 1 if begin > after else 0
            after = begin + (stop := data.rfind(b"\n") + 1)
            pieces.append(data[first:stop] if stop or pieces else data[: io_bounds.EVENT_BYTES + 1])
        return pieces


def _lines(pieces: Sequence[bytes]) -> list[bytes]:
    lines: list[bytes] = []
    for piece in pieces:
        most = io_bounds.EVENTS_LINES // len(pieces)
        if piece.count(b"\n") <= most:
            lines += piece.split(b"\n")
            continue
        last = piece.rfind(b"\n", 0, piece.rfind(b"\n")) + 1  # the last whole line; what follows it is being written
        step, most = last // _PIECES + 1, most // _PIECES
        for begin in range(0, last, step):
            first = piece.find(b"\n", begin) + 1 if begin else 0
            lines += piece[first : min(begin + step, last)].split(b"\n", most)[:most]
        lines.append(piece[last:].partition(b"\n")[0])
    return lines


def _until_series(lines: Sequence[bytes], series: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    # Without one of a series, the index is the number of lines. If there are no series, the first event is sought.
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        belongs = not series or any(kind in line for kind in series)
        if line and (not found or belongs) and _misfit(event := _parsed(line)) is None:
            found.append(event)
            if not series or f'"{event["event"]}"'.encode() in series:
                return found, number
    return found, len(lines)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None


def _misfit(event: object) -> str | None:
    # Returns why a value is not a valid event; None: it is valid
    if not isinstance(event, dict):
        return "it is no event"
    kind, moment = event.get("event"), event.get("time")
    if type(kind) is not str:
        return misfit(kind, str, "event")
    if not isinstance(moment, (int, float)) or isinstance(moment, bool) or not 0 <= moment < LATEST:
        return "time is not a time"
    try:
        safe_io.require_json_bounds(event)
    except ValueError as error:
        return str(error)
    return misfit(event, events.TYPES[kind], "") if kind in events.TYPES else None  # else of a newer version
