"""A file server with moments of weakness: system calls on chosen paths fail, for a while or for good."""

from __future__ import annotations

import builtins
import errno
import io
import os
import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.files import retried_reads
from tests.unit.clock import Clock

FOR_EVER = 10**9


class FileServer:
    """Calls on paths that contain one of the chosen texts fail so many times.

    Attributes:
        slept: the pauses that were made between tries; none of them takes any time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: dict[str, list[int]] = {}
        self.slept = Clock(monkeypatch, retried_reads).slept
        monkeypatch.setattr(retried_reads, "_rests_until", float("-inf"))
        calls: list[tuple[Any, str]] = [
            *((os, name) for name in ("open", "stat", "lstat", "scandir", "mkdir", "link")),
            (builtins, "open"), (io, "open"),
        ]  # fmt: skip
        if accessor := getattr(pathlib, "_NormalAccessor", None):  # Python 3.10: paths have functions of their own
            calls += [(accessor, "open"), (accessor, "stat"), (accessor, "scandir"), (accessor, "mkdir")]
        for owner, name in calls:
            monkeypatch.setattr(owner, name, staticmethod(self._failing(getattr(owner, name))))

    def fail(self, part: str | Path, times: int = FOR_EVER, number: int = errno.EIO) -> None:
        """From now on so many calls on paths that contain this text fail with this error."""
        self._left[str(part)] = [times, number]

    def recover(self) -> None:
        """Nothing fails any more, and nobody remembers that something did."""
        self._left.clear()
        retried_reads._rests_until = float("-inf")

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
            for part, left in self._left.items():
                if part in text and left[0] > 0:
                    left[0] -= 1
                    raise OSError(left[1], os.strerror(left[1]), text)
            return real(path, *arguments, **options)

        return call
