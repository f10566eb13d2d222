"""A clock that only its test moves: how busy the machine is makes no difference."""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace

import pytest


class Clock:
    """Stands for the module `time` in the modules that go by it, from the moment on in which it is made.

    Attributes:
        now: seconds since the epoch.
        slept: the pauses that were made, in seconds; none of them takes any time.
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
        """It is later."""
        self.slept.append(seconds)
        self.now += seconds
