"""Runs one size of a collective operation on this rank: warm-up, timing, and verification outside the timed part."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist

from launcher.worker import devices
from workloads import bench
from workloads.operations import Buffers, Call, Case, Operation

if TYPE_CHECKING:
    from launcher import Env
    from workloads.sweep import Settings

LATE = 0.01  # seconds by which the root comes late to a verified barrier; a rank that does not wait for it is found
MOST_ITERATIONS = 100_000  # most iterations with a time budget
_met: Counter[str] = Counter()  # number of verified barriers by name: each needs a key of its own in the store


class Run:
    """The runs of one operation at one size, in place or out of place, on this rank.

    case: the operation's case; None: this rank is in no group, and only joins the gathers of all ranks.
    buffers: the case's buffers; None: there is no case.
    checked: number of elements compared so far.
    wrong: number of wrong elements; for a barrier, number of ranks that had not arrived; None: unknown.
    """

    def __init__(
        self, settings: Settings, operation: Operation, env: Env, case: Case | None, buffers: Buffers | None
    ) -> None:
        self.settings, self.operation, self.env, self.case, self.buffers = settings, operation, env, case, buffers
        self.checked = 0
        self.wrong: int | None = 0
        on_stream = devices.ON_STREAM.get(env.backend) == env.device.type
        self._time: Callable[[Call, Call, int], list[float]] = (
            partial(bench.time_on_device, device=env.device) if on_stream else bench.time_calls
        )
        if case is not None and buffers is not None:
            self._meet: Call = partial(dist.barrier, group=case.group)
            call = operation.bind(case, buffers, settings.async_op)
            self._call = self._until_done(call) if env.device.type != "cpu" and not on_stream else call

    def _until_done(self, call: Call) -> Call:
        def call_and_finish() -> None:
            call()
            devices.synchronize(self.env.device)

        return call_and_finish

    def warm_up(self) -> int:
        """Makes the warm-up iterations; returns the number of iterations to time, the same on all ranks."""
        settings = self.settings
        count = max(settings.warmup, 1) if settings.budget else settings.warmup
        began = time.perf_counter()
        self.times(count)
        if settings.budget is None:
            return settings.iterations
        cost = bench.slowest([(time.perf_counter() - began) / count], self.env)[0]
        return max(2, min(MOST_ITERATIONS, int(settings.budget / max(cost, 1e-7))))

    def timed(self, iterations: int) -> list[float]:
        """Returns the seconds of each iteration. The first and the last one use new data, which is verified after the
        timing."""
        seconds = self._verified("first")
        if iterations > 1:
            seconds += self.times(iterations - 2)
            seconds += self._verified("last")
        return seconds

    def times(self, count: int) -> list[float]:
        """Runs `count` iterations on the current data; returns the seconds of each; 0 if this rank is in no group."""
        return self._time(self._call, self._meet, count) if self.case is not None and count else [0.0] * count

    def _verified(self, when: str) -> list[float]:
        if self.case is None or self.buffers is None:
            return [0.0]
        operation, case = self.operation, self.case.again(when)
        if operation.name == "barrier":
            seconds = self.times(1)
            missing = _missing_at_barrier(case, self._call)
            self.wrong = None if missing is None or self.wrong is None else self.wrong + missing
            return seconds
        operation.fill(case, self.buffers)
        seconds = self.times(1)
        devices.synchronize(self.env.device)
        wrong, checked = operation.check(case, self.buffers)
        self.wrong = (self.wrong or 0) + wrong
        self.checked += checked
        return seconds


def _missing_at_barrier(case: Case, barrier: Call) -> int | None:
    # The root arrives LATE seconds late.
    # None: unknown, since there is no store in which ranks are counted (MPI).
    store = dist.distributed_c10d._get_default_store()
    name = f"barrier/{case.key}/{case.ranks}"
    _met[name] += 1
    key = f"{name}/{_met[name]}"
    if case.is_root:
        time.sleep(LATE)
    if store:
        store.add(key, 1)
    barrier()
    return case.n - store.add(key, 0) if store else None
