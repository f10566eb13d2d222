"""A fake file system for checkpoints, in which some calls fail for a while."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.checkpoint import format as checkpoints
from launcher.files import retried_reads


@dataclass
class Fault:
    """A fault: which calls fail, and how often.

    Attributes:
        call: `open`, `stat`, `list` or `read`.
        part: a part of the path; empty: all paths.
        number: the error number (errno).
        times: how many calls fail; later ones succeed.
        after: bytes that can be read before a read fails.
    """

    call: str
    part: str = ""
    number: int = errno.EIO
    times: float = float("inf")
    after: int = 0


@dataclass
class FaultyFiles:
    """The fake: tests append to `faults`; `met` counts the calls that failed."""

    faults: list[Fault] = field(default_factory=list)
    met: int = 0

    def strike(self, call: str, path: Any, position: int = 0) -> None:
        for fault in self.faults:
            if fault.call == call and fault.part in str(path) and position >= fault.after and fault.times > 0:
                fault.times -= 1
                self.met += 1
                raise OSError(fault.number, os.strerror(fault.number), str(path))


class _File(io.FileIO):
    def __init__(self, path: Path, files: FaultyFiles) -> None:
        super().__init__(path, "rb")
        self._where, self._files = path, files

    def readinto(self, buffer: Any) -> int:
        position = self.tell()
        self._files.strike("read", self._where, position)
        for fault in self._files.faults:
            if fault.call == "read" and fault.part in str(self._where) and fault.times > 0:
                buffer = memoryview(buffer)[: max(1, fault.after - position)]
        return super().readinto(buffer) or 0


def install(monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    """Makes checkpoints be read through a new fake, with no pauses between retries; returns it."""
    files = FaultyFiles()
    stat, entries = checkpoints._stat, checkpoints._entries

    def opened(path: Path) -> io.FileIO:
        files.strike("open", path)
        return _File(path, files)

    def status(path: Path) -> os.stat_result:
        files.strike("stat", path)
        return stat(path)

    def listed(path: Path) -> dict[str, bool]:
        files.strike("list", path)
        return entries(path)

    monkeypatch.setattr(checkpoints, "_open", opened)
    monkeypatch.setattr(checkpoints, "_stat", status)
    monkeypatch.setattr(checkpoints, "_entries", listed)
    monkeypatch.setattr(retried_reads, "FIRST", 0.001)
    monkeypatch.setattr(retried_reads, "LONGEST", 0.001)
    return files
