"""A fake clock that only the test moves, so that a busy machine makes no difference."""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace

import pytest


class Clock:
    """Replaces the module `time` in the given modules.

    Attributes:
        now: seconds since the epoch.
        slept: the arguments of all calls of `sleep`, which return at once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now = time.time()  # the files of a test have times of this machine
        self.slept: list[float] = []
        for module in modules:
            real = vars(module)["time"]
            monkeypatch.setattr(
                module, "time",
                SimpleNamespace(**{
                    **vars(real), "time": lambda: self.now, "monotonic": lambda: self.now, "sleep": self.sleep
                }),
            )  # fmt: skip

    def sleep(self, seconds: float) -> None:
        """Moves the clock forward."""
        self.slept.append(seconds)
        self.now += seconds
