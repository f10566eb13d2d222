"""What a search may still spend, what it has spent and saved, and where its rungs are. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

LARGEST_SHUFFLED = (
    1_000_000  # combinations that are shuffled; more of them are taken with a stride that reaches each once
)


@dataclass(frozen=True)
class Cost:
    """The time that a point has taken.

    Attributes:
        seconds: how long it has run.
        step: steps that it has done; None: unknown.
        pruned: whether it was pruned.
        done: whether it has done all its steps.
    """

    seconds: float
    step: int | None = None
    pruned: bool = False
    done: bool = False


def spent(costs: Iterable[Cost], devices: int) -> float:
    """Returns the GPU-hours (without GPUs: node-hours) of points.

    Args:
        costs: of each point.
        devices: GPUs of a point; without GPUs its nodes.
    """
    return sum(each.seconds for each in costs) * devices / 3600


def saved(costs: Iterable[Cost], devices: int) -> float | None:
    """Returns the GPU-hours (without GPUs: node-hours) that pruning has saved; None: unknown.

    A pruned point would have taken its time per step for all remaining steps of a point that is done. It is unknown
    before a point is done that reported its steps.

    Args:
        costs, devices: as for `spent`.
    """
    known = list(costs)
    full = max((each.step for each in known if each.done and each.step), default=None)
    if full is None:
        return None
    seconds = sum(each.seconds * (full / each.step - 1) for each in known if each.pruned and each.step)
    return max(0.0, seconds) * devices / 3600


def min_steps_of(total: int, reduction_factor: int, rungs: int) -> int | None:
    """Returns the steps of the first rung, so that the last of `rungs` rungs is at 1/reduction_factor of all steps.

    | total | reduction_factor | rungs | first rung | rungs at |
    |---|---|---|---|---|
    | 0: unknown | 3 | 3 | None | |
    | 270 | 3 | 3 | 10 | 10, 30, 90 |
    | 20 | 3 | 3 | 1 | 1, 3, 9 |
    """
    return max(1, total // reduction_factor**rungs) if total > 0 else None


def permutation(count: int, place: int, seed: int) -> int:
    """Returns the number at a place of a random order of 0 to count - 1, always the same for a seed."""
    if count <= LARGEST_SHUFFLED:
        return _shuffled(count, seed)[place]
    generator = random.Random(seed)  # noqa: S311
    stride = generator.randrange(count // 3, count // 2)
    while math.gcd(stride, count) != 1:
        stride += 1
    return (generator.randrange(count) + place * stride) % count


@lru_cache(maxsize=1)
def _shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311
    return order
