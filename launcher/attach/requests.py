"""Requests of commands to the agents of a running attempt, and the agents' replies, as files of the run directory.

    attempts/N/attach.jsonl        the requests, one line of JSON each; the leading agent creates it and reads it every
                                  second
    attempts/N/attach/ID/member-P  the reply of agent P; the command creates it, empty, before it sends the request

Files work with every scheduler, and need no connection to the nodes. Each file is created before its reader polls it:
NFS may hide a new file for half a minute, but shows data appended to a known file as soon as it is reopened. For the
same reason a reply is written into the existing file, and not renamed to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from launcher.files import run_files
from launcher.runs import directory, event_file, events
from launcher.runs.events import AttachRequest

STACKS = "stacks"  # the stacks of all ranks
RANK = "rank"  # the location of one rank; see request_handler.rank_location
SERVE = "serve"  # the same, and start `node_session serve` on the rank's node
_ID = re.compile(r"[0-9a-f]{16}")


class RequestReader:
    """Reads requests, for the leading agent. Skips requests that were sent before this object was created."""

    def __init__(self, attempt: directory.Attempt) -> None:
        self._path, self._read = attempt.path / "attach.jsonl", 0
        self._waiting: list[str] = []
        with contextlib.suppress(OSError):  # a full disk: then no request can be sent
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._read = os.fstat(file).st_size
            os.close(file)

    def next(self) -> str | None:
        """Returns the oldest request not returned yet, a line of JSON; None: there is none."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size > self._read:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(end)
                self._waiting += whole.decode(errors="replace").splitlines()
        return self._waiting.pop(0) if self._waiting else None


def parse(text: str) -> dict[str, Any] | None:
    """Parses a line of JSON; None: not a valid request. The `id` of a valid request is safe as a folder name."""
    try:
        request = json.loads(text)
    except ValueError:
        return None
    valid = isinstance(request, dict) and _ID.fullmatch(str(request.get("id"))) and "what" in request
    return request if valid else None


def folder_of(attempt: directory.Attempt, request: dict[str, Any]) -> Path:
    """Returns the folder that receives the replies to a request."""
    return attempt.path / "attach" / str(request["id"])


def is_listening(attempt: directory.Attempt) -> bool:
    """Returns whether the leading agent has started to read requests."""
    return (attempt.path / "attach.jsonl").exists()


def send(
    attempt: directory.Attempt, what: str, members: int, files: dict[str, str] | None = None, rank: int | None = None
) -> Path:
    """Sends a request to all agents of an attempt, and returns the folder of their replies; raises OSError.

    what: the request: STACKS (of all ranks), RANK (location of a rank) or SERVE (network access to a rank).
    members: number of agents for which an empty reply file is created; others may reply, too.
    files: further files in the folder of replies, by name, which are written before the request.
    """
    request = AttachRequest(id=secrets.token_hex(8), what=what, rank=rank)
    folder = folder_of(attempt, events.values(request))
    run_files.make_folder(folder)
    for name, text in {**{f"member-{place}": "" for place in range(members)}, **(files or {})}.items():
        write_reply(folder / name, text)
    event_file.append(attempt.path / "attach.jsonl", request)
    return folder


def write_reply(path: Path, text: str) -> None:
    """Writes `text` to a file that only this user can read. An existing file is overwritten, not replaced."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def replies(folder: Path) -> dict[int, Any]:
    """Returns the replies that have arrived in a folder, by the agent's index in the round."""
    found = {}
    for path in folder.glob("member-*"):
        place = path.name.partition("-")[2]
        if place.isdecimal() and (value := read_reply(path)) is not None:
            found[int(place)] = value
    return found


def read_reply(path: Path) -> Any:
    """Returns the reply in a file, parsed from JSON; None: the file is missing or not complete yet."""
    try:
        return run_files.parse_json(run_files.read_whole(path))
    except (OSError, ValueError):
        return None
