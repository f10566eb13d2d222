"""Requests of commands to the agents of a running attempt, and the agents' replies, as files of the run directory.

    attempts/N/attach.jsonl        the requests, one line of JSON each; the leading agent creates it and reads it every
                                  second
    attempts/N/attach/ID/member-P  the reply of agent P; the command creates it, empty, before it sends the request

Files work with every scheduler, and need no connection to the nodes. Both files exist before anybody waits for them:
NFS may hide a new file for half a minute, but shows what was added to a file that it knows as soon as that is opened
again. For the same reason a reply is written into its file, and not renamed to it.
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
from launcher.runs import directory, event_file, event_json
from launcher.runs.events import AttachRequest

STACKS = "stacks"  # the stacks of all ranks
RANK = "rank"  # where one rank runs; see request_handler.rank_location
SERVE = "serve"  # the same, and start `node_session serve` there
_ID = re.compile(r"[0-9a-f]{16}")


class RequestReader:
    """Reads the requests, for the leading agent. Requests that were sent before it was made are skipped."""

    def __init__(self, attempt: directory.Attempt) -> None:
        self._path, self._read = attempt.path / "attach.jsonl", 0
        self._waiting: list[str] = []
        with contextlib.suppress(OSError):  # a full disk: then no request can be sent
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._read = os.fstat(file).st_size
            os.close(file)

    def next(self) -> str | None:
        """Returns the oldest request that was not returned yet, as its line of JSON; None: there is none."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size > self._read:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(end)
                self._waiting += whole.decode(errors="replace").splitlines()
        return self._waiting.pop(0) if self._waiting else None


def parse(text: str) -> dict[str, Any] | None:
    """Returns the request in a line; None: it is not a valid one. Pure. A valid `id` is safe as a folder's name."""
    try:
        request = json.loads(text)
    except ValueError:
        return None
    valid = isinstance(request, dict) and _ID.fullmatch(str(request.get("id"))) and "what" in request
    return request if valid else None


def folder_of(attempt: directory.Attempt, request: dict[str, Any]) -> Path:
    """Returns the folder of the replies to a request."""
    return attempt.path / "attach" / str(request["id"])


def is_listening(attempt: directory.Attempt) -> bool:
    """Returns whether the leading agent reads requests yet."""
    return (attempt.path / "attach.jsonl").exists()


def send(
    attempt: directory.Attempt, what: str, members: int, files: dict[str, str] | None = None, rank: int | None = None
) -> Path:
    """Sends a request to all agents of an attempt, and returns the folder of their replies.

    Args:
        attempt: the attempt, which runs.
        what: STACKS, RANK or SERVE.
        members: the number of agents; more of them may reply.
        files: contents of further files in that folder, by name, which are written before the request.
        rank: of which rank it is asked; None: of all.

    Raises:
        OSError: the run directory cannot be written to.
    """
    request = AttachRequest(id=secrets.token_hex(8), what=what, rank=rank)
    folder = folder_of(attempt, event_json.values(request))
    run_files.make_folder(folder)
    for name, text in {**{f"member-{place}": "" for place in range(members)}, **(files or {})}.items():
        write_reply(folder / name, text)
    event_file.append(attempt.path / "attach.jsonl", request)
    return folder


def write_reply(path: Path, text: str) -> None:
    """Writes a text into its file, which only this user can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def replies(folder: Path) -> dict[int, Any]:
    """Returns the replies in a folder so far, by the agent's number."""
    found = {}
    for path in folder.glob("member-*"):
        place = path.name.partition("-")[2]
        if place.isdecimal() and (value := read_reply(path)) is not None:
            found[int(place)] = value
    return found


def read_reply(path: Path) -> Any:
    """Returns the value in a reply's file; None: it is not there yet, or not complete."""
    try:
        return run_files.parse_json(run_files.read_whole(path))
    except (OSError, ValueError):
        return None
