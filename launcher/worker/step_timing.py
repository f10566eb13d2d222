"""Measures how long each rank works in a step, at next to no cost, and passes it to the rank's agent.

In synchronous training all steps take equally long, since all ranks wait for the slowest. What differs is the time that
a rank does not wait. A training marks where its own work ends and where waiting ends:

    pace.begin()      # a step begins (Resumable calls it at each boundary)
    pace.computed()   # the time since the last mark was this rank's own work
    pace.waited()     # the time since the last mark was spent waiting for others

`watch_gradients` and `watch_blocks` set the marks for DistributedDataParallel and FSDP. A step without `computed` does
not count. On a GPU marks are CUDA events, which are never waited for.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from launcher.worker import accelerator, heartbeat

INTERVAL = 1.0  # seconds between two reports to the agent
KEPT = 1024  # steps between two reports whose times are kept
BEHIND = 64  # steps that the device may be behind

M = TypeVar("M")


class _Clock(Protocol[M]):
    """Marks points in a device's time."""

    def mark(self) -> M: ...
    def passed(self, mark: M) -> bool: ...
    def seconds(self, first: M, last: M) -> float: ...


class _Host:
    """The host's clock, for work that is done when a call returns."""

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
    """The time at which an accelerator reaches a point of the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = accelerator.module(device).Event

    def mark(self) -> torch.Event:
        event: torch.Event = self._event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: torch.Event) -> bool:
        return bool(mark.query())

    def seconds(self, first: torch.Event, last: torch.Event) -> float:
        return float(first.elapsed_time(last)) / 1000


class Pace(Generic[M]):
    """Measures one rank's step time. Does nothing in a process without an agent.

    Attributes:
        units: for ranks that do different numbers of equal parts of a step's work: this rank's number. The reported
            time is that of one part.
    """

    def __init__(
        self, device: torch.device, slot: heartbeat.Slot | None = None, clock: _Clock[M] | None = None
    ) -> None:
        """
        Args:
            device: that this rank computes on.
            slot: where to write the time; None: this rank's slot, if it has one.
            clock: None: the device's.
        """
        self.units = 1.0
        self._slot = heartbeat.mine() if slot is None else slot
        self._clock: Any = clock or (_Host if device.type == "cpu" else _Device(device))
        self._mark: M | None = None
        self._spans: list[tuple[M, M]] = []  # of this step
        self._owed: deque[list[tuple[M, M]]] = deque(maxlen=BEHIND)  # of steps that the device has not finished
        self._times: deque[float] = deque(maxlen=KEPT)
        self._steps, self._next_report = 0, 0.0

    def begin(self) -> None:
        """Marks the end of a step and the begin of the next."""
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
        """Marks the moment when the backward pass reaches the first parameter, the last one to get its gradient.

        By then a rank has done all of its work in a step, and waits for sums over ranks (DistributedDataParallel, or
        whatever sums gradients after the backward pass).
        """
        first = next((each for each in model.parameters() if each.requires_grad), None)
        if self._slot is not None and first is not None:
            first.register_post_accumulate_grad_hook(lambda _: self.computed())

    def watch_blocks(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Marks the forward passes of blocks, before each of which `fully_shard` gathers weights, which is waiting.

        Call it after fully_shard. The time before the model is called (data) counts as work; backward passes do not.
        """
        if self._slot is None:
            return
        model.register_forward_pre_hook(lambda *_: self._in_training(self.computed), prepend=True)
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: self._in_training(self.waited))  # after FSDP's, which waits
            block.register_forward_hook(lambda *_: self._in_training(self.computed), prepend=True)

    @staticmethod
    def _in_training(mark: Any) -> None:
        """Calls `mark` unless this is an evaluation. Returns None: a hook's result would replace the model's values."""
        if torch.is_grad_enabled():
            mark()
