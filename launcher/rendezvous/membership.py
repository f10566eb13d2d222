"""The rounds of an attempt in its folder `rounds`: what agents cannot tell each other once they have lost each other.

| file | written by | says |
|---|---|---|
| `K.json` | the leader of round K | who takes part, and where the leader listens |

Such a file can be made only once: of two halves of a partitioned cluster one continues.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.files import run_files
from launcher.files.shared_files import exists, unwrap
from launcher.rendezvous.protocol import Member


@dataclass(frozen=True)
class Round:
    """One round that has begun.

    Attributes:
        number: from 0.
        host, port: where its leader listens.
        leader: its index.
        members: indices of all that take part.
    """

    number: int
    host: str
    port: int
    leader: int
    members: tuple[int, ...]


class Rounds:
    """The folder, as one agent sees it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, number: int, leader: Member, port: int, members: Sequence[Member], name: str) -> str | None:
        """Makes a round known, whole and only once; words when another leader has.

        Args:
            number: the round.
            leader: of it.
            port: on which it listens.
            members: all that take part.
            name: what to call the leader.

        Raises:
            OSError: it cannot be written, and nobody knows whether another leader has.
        """
        values = {
            "round": number, "leader": leader.index, "host": leader.host, "port": port,
            "members": [asdict(member) for member in members],
        }  # fmt: skip
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            run_files.create(self._folder / f"{number}.json", json.dumps(values).encode())
        except FileExistsError:
            return f"round {number} has begun without {name}"
        return None

    def begun(self, number: int) -> bool:
        """Whether some agents are in this round.

        Raises:
            UnavailableError: nobody can tell now.
        """
        return bool(unwrap(exists(self._folder / f"{number}.json", retry_seconds=0)))

    def latest(self) -> Round | None:
        """The newest round; None: none has begun. A file that is not one of ours is passed over.

        Raises:
            OSError: the folder, or a file in it, cannot be read now; that says nothing about the rounds.
        """
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return None
        numbers = [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal()]
        for number in sorted(numbers, reverse=True):
            try:
                values: dict[str, Any] = json.loads((self._folder / f"{number}.json").read_text())
                members = tuple(int(member["index"]) for member in values["members"])
                host, port, leader = str(values["host"]), int(values["port"]), int(values["leader"])
            except (ValueError, KeyError, TypeError):
                continue
            return Round(number, host, port, leader, members)
        return None

    def show_life(self, number: int) -> None:
        """For those that wait to join; the leader of the round does it now and then."""
        with contextlib.suppress(OSError):
            os.utime(self._folder / f"{number}.json")

    def sign_of_life(self, number: int) -> str:
        """Changes as long as the round's leader lives."""
        try:
            return f"{number} {(self._folder / f'{number}.json').stat().st_mtime_ns}"
        except OSError:
            return f"{number}"
