"""Files in the attempt's directory `rounds`, in which agents that lost their leader find the newest round's leader.

| file | written by | contains |
|---|---|---|
| `K.json` | the leader of round K | its members, and the address that the leader listens on |

Only one process can create the file of a round, so that of two halves of a partitioned cluster only one continues.
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
from launcher.rendezvous.members import Member


@dataclass(frozen=True)
class Round:
    """One round that has started."""

    number: int  # index of the round, from 0. host, port: the address that the leader listens on
    host: str
    port: int
    leader: int  # `Member.index` of the agent that leads the round
    members: tuple[int, ...]  # `Member.index` of each agent that takes part


class Rounds:
    """Reads and writes the attempt's directory `rounds`, for one agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, number: int, leader: Member, port: int, members: Sequence[Member]) -> bool:
        """Creates the file of a round atomically. Returns whether this call did; False: another leader has created it.

        number: index of the round, from 0.
        Raises OSError: the file cannot be written. Whether another leader has created it is unknown then.
        """
        values = {
            "round": number, "leader": leader.index, "host": leader.host, "port": port,
            "members": [asdict(member) for member in members],
        }  # fmt: skip
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            run_files.create(self._folder / f"{number}.json", json.dumps(values).encode())
        except FileExistsError:
            return False
        return True

    def begun(self, number: int) -> bool:
        """Returns whether round `number` has started. Raises UnavailableError: the directory cannot be read now."""
        return bool(unwrap(exists(self._folder / f"{number}.json", retry_seconds=0)))

    def time_of(self, number: int) -> int:
        """Returns when a round began or its leader had its last heartbeat, in nanoseconds of the file server's clock.

        Raises OSError: the file of the round cannot be read.
        """
        return (self._folder / f"{number}.json").stat().st_mtime_ns

    def latest(self) -> Round | None:
        """Returns the newest round; None: no round has started. Files that are not in this format are ignored.

        Raises OSError: the directory, or a file in it, cannot be read now, so that the newest round is unknown.
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

    def heartbeat(self, number: int) -> None:
        """Updates the mtime of a round's file, if possible. The leader calls it regularly; agents that wait poll it."""
        with contextlib.suppress(OSError):
            os.utime(self._folder / f"{number}.json")

    def last_heartbeat(self, number: int) -> str:
        """Returns a string that changes with each heartbeat of the round's leader; constant if it cannot be read."""
        try:
            return f"{number} {self.time_of(number)}"
        except OSError:
            return f"{number}"
