"""What the first node of a group knows of the others: how their parts of points end, what these print, who is lost."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.files import run_files
from launcher.pilots.group import Group, printed_on
from launcher.pilots.journal_reader import JournalReader
from launcher.runs.claims import Claims
from launcher.runs.directory import Attempt
from launcher.runs.events import PartEnded

MOST = 1 << 24  # bytes of output that are copied at once


class Parts:
    """The parts of points on the other nodes of a group; of a group of one node there are none."""

    def __init__(self, folder: Claims, group: Group, silence: float) -> None:
        """
        Args:
            folder: of the claims.
            group: the group that this node leads.
            silence: seconds without a heartbeat after which a node is lost.
        """
        self._group = group
        self._readers = {place: JournalReader(folder, each, silence) for place, each in group.followers.items()}
        self._codes: dict[tuple[int, int], dict[int, int]] = {}  # by point and attempt: exit codes by place
        self._copied: dict[Path, int] = {}

    def look(self, now: float) -> None:
        """Reads what the other nodes have written.

        Args:
            now: monotonic seconds.
        """
        for place, reader in self._readers.items():
            for event in reader.look(now):
                if isinstance(event, PartEnded):
                    self._codes.setdefault((event.point, event.attempt), {})[place] = event.code

    @property
    def lost(self) -> tuple[str, ...]:
        """The hosts whose slot managers are gone."""
        return tuple(self._group.hosts[place] for place, reader in self._readers.items() if reader.gone)

    def ended(self, point: int, attempt: Attempt) -> bool:
        """Whether all parts of an attempt have ended."""
        return len(self._codes.get((point, attempt.number), ())) == len(self._readers)

    def failed(self, point: int, attempt: Attempt) -> bool:
        """Whether a part of an attempt has ended with another exit code than 0."""
        return any(self._codes.get((point, attempt.number), {}).values())

    def forget(self, point: int, attempt: Attempt) -> None:
        """The attempt is over."""
        self._codes.pop((point, attempt.number), None)
        for place in self._readers:
            self._copied.pop(printed_on(attempt, place), None)

    def copy_output(self, attempt: Attempt, output: Path) -> None:
        """Appends the whole lines that parts have printed since the last call to the output of their point.

        Raises:
            OSError: it cannot be written.
        """
        for place in self._readers:
            path = printed_on(attempt, place)
            try:
                text, begin = run_files.read_range(path, self._copied.get(path, 0), None, MOST)
            except OSError:  # the next call reads it
                continue
            whole = text.rfind(b"\n") + 1
            if whole:
                with open(output, "ab", opener=_private) as file:
                    file.write(text[:whole])
            self._copied[path] = begin + whole


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
