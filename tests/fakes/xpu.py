"""torch.xpu without an XPU: what is called is recorded, in order, and answered as torch answers where there are two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

NAME = "Intel(R) Data Center GPU Max 1550"
# What torch 2.4 lacks of it.
NEWER = ("mem_get_info", "memory_reserved", "memory_allocated", "is_bf16_supported")


class Event:
    """An event: the number of the call that recorded it is its time in milliseconds."""

    def __init__(self, calls: list[tuple[Any, ...]], enable_timing: bool = False) -> None:
        self.calls, self.timing, self.at = calls, enable_timing, 0

    def record(self) -> None:
        self.calls.append(("record",))
        self.at = len(self.calls)

    def elapsed_time(self, later: Event) -> float:
        assert self.timing
        return float(later.at - self.at)


class FakeXpu(SimpleNamespace):
    """The module.

    Attributes:
        calls: what was called, with its arguments.
    """

    def __init__(self, devices: int = 2, initialized: bool = True) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current = 0
        super().__init__(
            device_count=lambda: devices, is_available=lambda: devices > 0, _is_compiled=lambda: True,
            is_initialized=lambda: initialized, init=self._init, current_device=lambda: self.current,
            set_device=self._set_device, device=None,
            Stream=None, current_stream=None,
            synchronize=lambda device=None: self.calls.append(("synchronize", device)),
            get_device_name=lambda device: NAME, mem_get_info=lambda device: (2 << 30, 64 << 30),
            memory_reserved=lambda device: 9 << 30, memory_allocated=lambda device: 8 << 30,
            is_bf16_supported=lambda: True, Event=lambda **how: Event(self.calls, **how),
            manual_seed=lambda seed: self.calls.append(("manual_seed", seed)),
            get_rng_state=lambda device: torch.tensor([device.index]),
            set_rng_state=lambda state, device: self.calls.append(("set_rng_state", state.item(), device)),
            get_device_properties=lambda device: SimpleNamespace(uuid="the card's"),
        )  # fmt: skip

    def _init(self) -> None:
        raise RuntimeError("No XPU devices are available.")

    def _set_device(self, device: torch.device) -> None:
        self.calls.append(("set_device", device))
        self.current = device.index


def install(
    monkeypatch: pytest.MonkeyPatch, devices: int = 2, *, old: bool = False, initialized: bool = True
) -> FakeXpu:
    """From now on torch is one for XPU.

    Args:
        monkeypatch: undoes it.
        devices: that it sees.
        old: it is torch 2.4, which has no torch.accelerator, no xccl and less of torch.xpu.
        initialized: this process uses an XPU.
    """
    fake = FakeXpu(devices, initialized)
    for name in NEWER if old else ():
        delattr(fake, name)
    monkeypatch.setattr(torch, "xpu", fake)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip=None, **({} if old else {"xpu": "20250301"})))
    monkeypatch.delattr(dist, "is_xccl_available", raising=False)
    if old:
        monkeypatch.delattr(torch, "accelerator", raising=False)
    else:
        monkeypatch.setattr(torch, "accelerator", SimpleNamespace(), raising=False)
        monkeypatch.setattr(dist, "is_xccl_available", lambda: True, raising=False)
    return fake
