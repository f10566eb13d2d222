"""What the first node of a group knows of the others: exit codes and output of their parts of points, lost nodes.

A point that needs several nodes has a part on each: a process of that node's slot manager.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from launcher.errors import RunError
from launcher.formatting import long_size
from launcher.pilots.group import Group, printed_on
from launcher.pilots.journal_reader import JournalReader
from launcher.runs.claims import Claims
from launcher.runs.directory import Attempt
from launcher.runs.events import PartEnded
from launcher.runs.output import read

MOST = 1 << 26  # about so many bytes of output one call copies for one node


class Parts:
    """What the journals of a group's other nodes say about their parts of points; nothing if the group is one node."""

    def __init__(self, folder: Claims, group: Group, silence: float) -> None:
        """
        Args:
            folder: the sweep's claims, and the journals of its slot managers.
            group: the group of which this node is the first.
            silence: seconds without a heartbeat after which a node is lost.
        """
        self._group = group
        self._readers = {place: JournalReader(folder, each, silence) for place, each in group.followers.items()}
        self._codes: dict[tuple[int, int], dict[int, int]] = {}  # by point and attempt: exit codes by place
        self._copied: dict[Path, int] = {}

    def look(self, now: float) -> None:
        """Reads new events of the other nodes' journals: exit codes of parts, and heartbeats.

        Args:
            now: monotonic seconds.
        """
        for place, reader in self._readers.items():
            for event in reader.look(now):
                if isinstance(event, PartEnded):
                    self._codes.setdefault((event.point, event.attempt), {})[place] = event.code

    @property
    def lost(self) -> tuple[str, ...]:
        """Host names of the nodes with a slot manager that is gone."""
        return tuple(self._group.hosts[place] for place, reader in self._readers.items() if reader.gone)

    def ended(self, point: int, attempt: Attempt) -> bool:
        """Returns whether the parts of an attempt of point `point` on all other nodes have ended."""
        return len(self._codes.get((point, attempt.number), ())) == len(self._readers)

    def failed(self, point: int, attempt: Attempt) -> bool:
        """Returns whether a part of an attempt of point `point` on another node has ended with a nonzero exit code."""
        return any(self._codes.get((point, attempt.number), {}).values())

    def forget(self, point: int, attempt: Attempt) -> None:
        """Drops the exit codes and the output positions of an attempt of point `point` that is over."""
        self._codes.pop((point, attempt.number), None)
        for place in self._readers:
            self._copied.pop(printed_on(attempt, place), None)

    def copy_output(self, attempt: Attempt, output: Path, *, ended: bool = False) -> None:
        """Appends the lines that other nodes' parts of an attempt have printed since the last call.

        Args:
            attempt: the point's attempt.
            output: the point's output file, to which they are appended.
            ended: whether this is the last call. Of more than MOST bytes only the last ones are appended then, below a
                line that says so. What cannot be read or written now is left for the next call.
        """
        for place in self._readers:
            path = printed_on(attempt, place)
            begin = self._copied.get(path, 0)
            with contextlib.suppress(OSError, RunError), open(output, "ab", buffering=0, opener=_private) as file:
                if ended and (missing := os.stat(path).st_size - MOST - begin) > 0:
                    begin += missing
                    words = f"{long_size(missing)} of the output of {self._group.hosts[place]} is missing here"
                    file.write(os.fsencode(f"launcher: {words}: all of it is in {path}\n"))
                first = begin
                for text in read(path, begin, None, last=ended):
                    begin += (written := file.write(text))
                    if written < len(text) or begin >= first + MOST:
                        break
            self._copied[path] = begin


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
