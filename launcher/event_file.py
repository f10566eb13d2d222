"""Files of events: JSON lines, each of one writer, that are read while they grow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.os_errors import naming
from launcher.shared_files import known, read_bytes, tried

# What readers rely on. An event without it was damaged, and is left out as a line is that was cut off.
_NEEDED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "submitting": {"token": str},
    "submitted": {"job": str},
    "process": {"pid": int, "start": int, "host": str},
    "started": {"job": str},
    "ended": {"code": int},
    "fault": {"cause": str},
    "setup_failed": {"line": int, "host": str},
    "stop": {"cause": str},
    "stop_requested": {"signal": str, "host": str},
    "stays": {"what": str, "why": str},
    "progress": {"step": (int, float), "total": (int, float)},
    "saved": {"step": int},
    "breakpoint": {"rank": int, "host": str, "where": str, "socket": str},
    "continued": {"rank": int},
}
_ENDS = 1 << 12  # bytes that are read at the beginning and at the end of what rank 0 tells of its progress


def append(path: Path, event: str, *, sync: bool = False, **values: Any) -> None:
    """Adds one event, in a single write, so that a reader sees it whole or not yet.

    Raises:
        OSError: it could not be written, or not all of it.
    """
    line = json.dumps({"time": round(time.time(), 6), "event": event, **values}) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size if sync else 0
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a line that a full disk has cut off
            line = "\n" + line
        with naming(path):
            data = line.encode()
            while data:  # of what does not fit any more the kernel takes a part first, and refuses the rest then
                data = data[os.write(descriptor, data) :]
            if sync:
                os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path | str, end: int | None = None, *, patience: float | None = None) -> Iterator[dict[str, Any]]:
    """The events of one file; a last line that is still being written is left out, and so is one that is damaged.

    Args:
        path: the file; there may be none.
        end: read only so many bytes at its end.
        patience: see `shared_files.tried`.

    Raises:
        UnavailableError: it cannot be read now.
        RunError: it is no file.
    """
    if end is None:
        data = known(read_bytes(path, patience=patience))
    else:
        data = known(tried(lambda: _end_of(path, end), path, patience=patience))
    if data is None:
        return
    lines = [line for line in data.split(b"\n") if line]
    try:  # all at once, which takes half as long
        events = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        events = map(_parsed, lines)
    yield from filter(_sound, events)


def read_ends(path: str) -> list[dict[str, Any]]:
    """The first and the last event of a file, and the first and the last that tell of progress: enough for its rate.

    Raises:
        UnavailableError, RunError: as for `read`.
    """
    data = known(tried(lambda: _ends_of(path), path))
    if data is None:
        return []
    lines = data.split(b"\n")
    first, place = _until_progress(lines)
    last, _ = _until_progress(lines[:place:-1])
    return first + last[::-1]


def _end_of(path: Path | str, size: int) -> bytes:
    """The last bytes of a file; what is left of the line in which they begin is no JSON."""
    with open(path, "rb", buffering=0) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.readall()


def _ends_of(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = file.read(_ENDS)
        if len(data) == _ENDS:
            file.seek(max(_ENDS, os.fstat(file.fileno()).st_size - _ENDS))
            data += b"\n" + file.readall()
        return data


def _until_progress(lines: Sequence[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The first sound event, the first one of progress if that is another, and the number of the line it is in."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        if line and (not found or b'"progress"' in line) and _sound(event := _parsed(line)):
            found.append(event)
            if event["event"] == "progress":
                return found, number
    return found, len(lines)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _sound(event: object) -> bool:
    """Whether an event has what readers rely on."""
    if not isinstance(event, dict):
        return False
    kind, moment = event.get("event"), event.get("time")
    if not isinstance(kind, str) or not isinstance(moment, (int, float)) or not 0 <= moment < float("inf"):
        return False
    needed = _NEEDED.get(kind)
    return needed is None or all(isinstance(event.get(key), types) for key, types in needed.items())
