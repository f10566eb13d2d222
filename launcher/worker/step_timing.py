"""Measures how long each rank works in a step, at next to no cost, and passes it to the rank's agent.

In synchronous training each rank waits for the slowest: what differs is how much of a step a rank works. A training
marks where its own work ends and where its waiting ends:

    pace.begin()      # a step starts (Resumable calls this at each boundary)
    pace.computed()   # the time since the last mark was this rank's own work
    pace.waited()     # the time since the last mark was spent waiting for other ranks

`watch_gradients` and `watch_blocks` set the marks for DistributedDataParallel and FSDP. A step without `computed` does
not count. On a GPU the marks are CUDA events, and the host never waits for them.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from launcher.worker import devices, heartbeat

INTERVAL = 1.0  # seconds between two reports to the agent
KEPT = 1024  # times of at most so many steps are kept for the next report
BEHIND = 64  # at most so many steps are kept that the device has not finished


class _Host:
    # The host's clock: on the CPU, work is complete when a call returns

    @staticmethod
    def mark() -> float:
        return time.perf_counter()

    @staticmethod
    def passed(mark: float) -> bool:
        return True

    @staticmethod
    def seconds(first: float, last: float) -> float:
        return last - first


class _Device:
    # Events on the accelerator's current stream

    def __init__(self, device: torch.device) -> None:
        self._event = devices.module(device).Event

    def mark(self) -> torch.Event:
        event: torch.Event = self._event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: torch.Event) -> bool:
        return bool(mark.query())

    def seconds(self, first: torch.Event, last: torch.Event) -> float:
        return float(first.elapsed_time(last)) / 1000


class StepTimer:
    """Measures how long one rank works in a step (or in each of `units` equal parts); without an agent, nothing."""

    def __init__(self, device: torch.device, slot: heartbeat.RankSlot | None = None, clock: Any = None) -> None:
        # None: this rank's slot, if it has one; the clock of the device. A mark is of the clock's own type
        self.units = 1.0
        self._slot = heartbeat.mine() if slot is None else slot
        self._clock: Any = clock or (_Host if device.type == "cpu" else _Device(device))
        self._mark: Any = None
        self._spans: list[tuple[Any, Any]] = []  # (first, last) mark of each span of work in this step
        # spans of steps that the device has not finished
        self._owed: deque[list[tuple[Any, Any]]] = deque(maxlen=BEHIND)
        self._times: deque[float] = deque(maxlen=KEPT)
        self._steps, self._next_report = 0, 0.0

    def begin(self) -> None:
        """Marks the start of a step, which ends the step before; reports the median time at most once per INTERVAL."""
        if self._slot is None:
            return
        if self._spans:
            self._owed.append(self._spans)
            self._spans = []
        clock = self._clock
        while self._owed and clock.passed(self._owed[0][-1][1]):
            self._times.append(sum(clock.seconds(first, last) for first, last in self._owed.popleft()))
            self._steps += 1
        if self._times and (now := time.monotonic()) >= self._next_report:
            self._next_report = now + INTERVAL
            self._slot.pace(statistics.median(self._times) / self.units, self._steps)
            self._times.clear()
        self._mark = clock.mark()

    def computed(self) -> None:
        """Counts the time since the last mark as this rank's own work."""
        if self._mark is not None:
            now = self._clock.mark()
            self._spans.append((self._mark, now))
            self._mark = now

    def waited(self) -> None:
        """Counts the time since the last mark as waiting for other ranks."""
        if self._mark is not None:
            self._mark = self._clock.mark()

    def watch_gradients(self, model: nn.Module) -> None:
        """Calls `computed` when the first parameter, the last in a backward pass, has got its gradient."""
        first = next((each for each in model.parameters() if each.requires_grad), None)
        if self._slot is not None and first is not None:
            first.register_post_accumulate_grad_hook(lambda _: self.computed())

    def watch_blocks(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Counts forward passes of fully_shard's blocks as work, the gathering of weights before each as waiting."""
        if self._slot is None:
            return
        model.register_forward_pre_hook(lambda *_: self._in_training(self.computed), prepend=True)
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: self._in_training(self.waited))  # after FSDP's, which waits
            block.register_forward_hook(lambda *_: self._in_training(self.computed), prepend=True)

    @staticmethod
    def _in_training(mark: Any) -> None:
        if torch.is_grad_enabled():
            mark()
