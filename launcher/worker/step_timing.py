"""What each rank itself needs for a step, told to its agent at next to no cost.

In synchronous training all steps take equally long, for all ranks wait for the slowest: what tells them apart is the
time that a rank does not wait. A training marks where its own work ends and where waiting does:

    pace.begin()      # a step begins (Resumable does it at each boundary)
    pace.computed()   # the time since the last mark was this rank's own
    pace.waited()     # the time since the last mark was spent waiting for others

`watch_gradients` and `watch_blocks` set the marks for DistributedDataParallel and FSDP. A step without `computed` does
not count. On a GPU marks are CUDA events, which nobody ever waits for.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from launcher.worker import heartbeat

INTERVAL = 1.0  # seconds between two words to the agent
KEPT = 1024  # steps between two words whose times are kept
BEHIND = 64  # steps whose times the device may still owe

M = TypeVar("M")


class _Clock(Protocol[M]):
    """Marks in a device's time."""

    def mark(self) -> M: ...
    def passed(self, mark: M) -> bool: ...
    def seconds(self, first: M, last: M) -> float: ...


class _Host:
    """The time of the host, for work that a call has done when it returns."""

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
    """The time at which a GPU comes to a point of the current stream."""

    @staticmethod
    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def passed(mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

    @staticmethod
    def seconds(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return float(first.elapsed_time(last)) / 1000


class Pace(Generic[M]):
    """The pace of one rank. Where no agent listens, it does nothing.

    Attributes:
        units: parts of the work of a step that this rank does, where ranks do unequal numbers of equal parts; what is
            told is the time of one.
    """

    def __init__(
        self, device: torch.device, slot: heartbeat.Slot | None = None, clock: _Clock[M] | None = None
    ) -> None:
        """
        Args:
            device: that this rank computes on.
            slot: where to tell it; None: this rank's place with its agent, if it has one.
            clock: None: the device's.
        """
        self.units = 1.0
        self._slot = heartbeat.mine() if slot is None else slot
        self._clock: Any = clock or (_Device if device.type == "cuda" else _Host)
        self._mark: M | None = None
        self._spans: list[tuple[M, M]] = []  # of this step
        self._owed: deque[list[tuple[M, M]]] = deque(maxlen=BEHIND)  # of steps that the device has yet to come to
        self._times: deque[float] = deque(maxlen=KEPT)
        self._steps, self._next_word = 0, 0.0

    def begin(self) -> None:
        """A step begins, and the one before is over."""
        if self._slot is None:
            return
        if self._spans:
            self._owed.append(self._spans)
            self._spans = []
        clock = self._clock
        while self._owed and clock.passed(self._owed[0][-1][1]):
            self._times.append(sum(clock.seconds(first, last) for first, last in self._owed.popleft()))
            self._steps += 1
        if self._times and (now := time.monotonic()) >= self._next_word:
            self._next_word = now + INTERVAL
            self._slot.pace(statistics.median(self._times) / self.units, self._steps)
            self._times.clear()
        self._mark = clock.mark()

    def computed(self) -> None:
        """The time since the last mark was this rank's own."""
        if self._mark is not None:
            now = self._clock.mark()
            self._spans.append((self._mark, now))
            self._mark = now

    def waited(self) -> None:
        """The time since the last mark was spent waiting for other ranks."""
        if self._mark is not None:
            self._mark = self._clock.mark()

    def watch_gradients(self, model: nn.Module) -> None:
        """Marks when the backward pass has come to the first parameter, the last to get its gradient.

        By then a rank has done all its own work of a step, and then waits for sums over ranks
        (DistributedDataParallel, or whatever sums gradients after the backward pass).
        """
        first = next((each for each in model.parameters() if each.requires_grad), None)
        if self._slot is not None and first is not None:
            first.register_post_accumulate_grad_hook(lambda _: self.computed())

    def watch_blocks(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Marks the forward passes of blocks whose weights `fully_shard` gathers before each, which is waiting.

        Call it after fully_shard. What comes before the model is called (data) counts as well; backward passes do not.
        """
        if self._slot is None:
            return
        model.register_forward_pre_hook(lambda *_: self._in_training(self.computed), prepend=True)
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: self._in_training(self.waited))  # after FSDP's, which waits
            block.register_forward_hook(lambda *_: self._in_training(self.computed), prepend=True)

    @staticmethod
    def _in_training(mark: Any) -> None:
        """Evaluations do other work. A hook that returns something would change what goes through the model."""
        if torch.is_grad_enabled():
            mark()
