"""Computes the GPU-hours that a search has spent and saved, its first rung, and a shuffled order of points."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

LARGEST_SHUFFLED = 1_000_000  # up to so many combinations are shuffled; more are visited with a stride


@dataclass(frozen=True)
class Cost:
    """The run time of a point."""

    seconds: float  # how long the point has run, in all its attempts
    step: int | None = None  # number of steps that the point has done; None: unknown
    pruned: bool = False  # whether the point was pruned
    done: bool = False  # whether the point has done all its steps


def spent(costs: Iterable[Cost], devices: int) -> float:
    """Returns the GPU-hours (without GPUs: node-hours) that points have used.

    devices: number of GPUs of one point; without GPUs, number of its nodes.
    """
    return sum(each.seconds for each in costs) * devices / 3600


def saved(costs: Iterable[Cost], devices: int) -> float | None:
    """Estimates the GPU-hours (without GPUs: node-hours) that pruning has saved; None: not known yet.

    Each pruned point would have done as many steps as the longest point that is done, at its own seconds per step. So
    nothing is known before a point that reports steps is done.

    costs, devices: as for `spent`.
    """
    known = list(costs)
    full = max((each.step for each in known if each.done and each.step), default=None)
    if full is None:
        return None
    seconds = sum(each.seconds * (full / each.step - 1) for each in known if each.pruned and each.step)
    return max(0.0, seconds) * devices / 3600


def min_steps_of(total: int, reduction_factor: int, rungs: int) -> int | None:
    """Returns the number of steps at the first rung, such that the last rung is at 1/reduction_factor of all steps.

    | total | reduction_factor | rungs | result | all rungs |
    |---|---|---|---|---|
    | 0: unknown | 3 | 3 | None | |
    | 270 | 3 | 3 | 10 | 10, 30, 90 |
    | 20 | 3 | 3 | 1 | 1, 3, 9 |

    total: number of steps of a point; 0: unknown.
    reduction_factor: ratio of the steps at two successive rungs.
    """
    return max(1, total // reduction_factor**rungs) if total > 0 else None


def permutation(count: int, place: int, seed: int) -> int:
    """Returns the element at index `place` of a random permutation of 0 to count - 1, which depends on the seed alone.

    More than LARGEST_SHUFFLED elements are not shuffled, but visited with a random stride.
    """
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
