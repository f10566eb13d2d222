"""What a command asks the agents of a running attempt, and what they answer: files of the run directory alone.

    attempts/N/asked.jsonl        the questions, one line each; the first agent makes it, and looks at it every second
    attempts/N/asked/ID/member-P  what the agent at place P answers; the command makes it, empty, before it asks

So it works the same on every scheduler, and needs no way to the nodes. No file is awaited that is not there when it is
first looked at: NFS may hide such a one for half a minute, but shows what was added to one that it knows when that is
opened anew. For the same reason an answer is written into its file and not moved to its place.
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
from launcher.runs import directory, event_file

STACKS, RANK, SERVE = "stacks", "rank", "serve"  # of all ranks; how to get beside one; let me in from the network
_ID = re.compile(r"[0-9a-f]{16}")


class Questions:
    """The questions, as the first agent reads them. One that was asked before it began is not its own."""

    def __init__(self, attempt: directory.Attempt) -> None:
        self._path, self._read = attempt.path / "asked.jsonl", 0
        self._waiting: list[str] = []
        with contextlib.suppress(OSError):  # a full disk: then nothing can be asked
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._read = os.fstat(file).st_size
            os.close(file)

    def next(self) -> str | None:
        """The oldest question that was not handed out yet, as it was written."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size > self._read:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
                self._read += len(whole) + len(end)
                self._waiting += whole.decode(errors="replace").splitlines()
        return self._waiting.pop(0) if self._waiting else None


def parse(text: str) -> dict[str, Any] | None:
    """The question in a line; None: it is none. Pure. Its `id` is safe to be a folder's name."""
    try:
        question = json.loads(text)
    except ValueError:
        return None
    good = isinstance(question, dict) and _ID.fullmatch(str(question.get("id"))) and "what" in question
    return question if good else None


def folder_of(attempt: directory.Attempt, question: dict[str, Any]) -> Path:
    """Where its answers are."""
    return attempt.path / "asked" / str(question["id"])


def listens(attempt: directory.Attempt) -> bool:
    """Whether there is an agent to be asked yet."""
    return (attempt.path / "asked.jsonl").exists()


def ask(
    attempt: directory.Attempt, what: str, members: int, files: dict[str, str] | None = None, **details: Any
) -> Path:
    """Asks all agents of the attempt, and returns the folder of their answers.

    Args:
        attempt: it runs.
        what: STACKS, RANK or SERVE.
        members: how many agents there are; more may answer.
        files: more files of that folder, by name, which are there before the question is.
        details: more of the question.

    Raises:
        OSError: the run directory cannot be written to.
    """
    question = {"id": secrets.token_hex(8), "what": what, **details}
    folder = folder_of(attempt, question)
    run_files.make_folder(folder)
    for name, text in {**{f"member-{place}": "" for place in range(members)}, **(files or {})}.items():
        answer(folder / name, text)
    event_file.append(attempt.path / "asked.jsonl", "asked", **question)
    return folder


def answer(path: Path, text: str) -> None:
    """Writes an answer into its file."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def answers(folder: Path) -> dict[int, Any]:
    """What was answered so far, by place of the agent."""
    found = {}
    for path in folder.glob("member-*"):
        place = path.name.partition("-")[2]
        if place.isdecimal() and (value := read(path)) is not None:
            found[int(place)] = value
    return found


def read(path: Path) -> Any:
    """The JSON of an answer; None: it is not there yet, or not whole."""
    try:
        return run_files.parse_json(run_files.read_whole(path))
    except (OSError, ValueError):
        return None
