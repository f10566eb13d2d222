"""A clock that only its test moves: how busy the machine is makes no difference."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

BEGIN = 1_800_000_000.0  # seconds since the epoch


class Clock:
    """Stands for the module `time` in the modules that go by it.

    Attributes:
        now: seconds since the epoch.
        slept: the pauses that were made, in seconds; none of them takes any time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, now: float = BEGIN) -> None:
        self.now = now
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
