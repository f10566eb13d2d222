"""How a sweep may be searched, and the values that keys may have. Pure; `space_overrides.py` reads the latter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Method(Enum):
    """How a search chooses points, and which of them it ends early."""

    grid = "grid"  # all combinations, in order
    random = "random"  # at random
    tpe = "tpe"  # by the results so far: a tree-structured Parzen estimator
    asha = "asha"  # at random; points that are behind are pruned: asynchronous successive halving


class Goal(Enum):
    """Which values of the objective are good."""

    minimize = "minimize"
    maximize = "maximize"


@dataclass(frozen=True)
class Dimension:
    """The values of one key: choices, or the numbers from `low` to `high`.

    Attributes:
        choices: values as they are written in an override; empty: numbers.
        low, high: the smallest and the largest number.
        whole: whether only whole numbers are meant.
        step: distance between two numbers; None: any number, or every whole number.
        log: whether numbers are spread evenly by their logarithm.
    """

    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    step: float | None = None
    log: bool = False

    def count(self) -> int | None:
        """Returns the number of values; None: there are infinitely many."""
        if self.choices:
            return len(self.choices)
        if self.step is None and not self.whole:
            return None
        return int((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def value(self, index: int) -> str:
        """Returns a value as text, by its number from 0 to `count() - 1`."""
        if self.choices:
            return self.choices[index]
        return self.text(self.low + index * (self.step or 1))

    def readable(self, number: float) -> float:
        """Returns a number of an interval in few digits: changed by at most 1e-5 of itself and of the range."""
        if self.whole or self.step is not None:
            return number
        allowed = 1e-5 * min(abs(number), self.high - self.low)
        short = (float(f"{number:.{digits}g}") for digits in range(1, 17))
        return next((each for each in short if abs(each - number) <= allowed and self.low <= each <= self.high), number)

    def text(self, number: float) -> str:
        """Returns a number of this dimension as it is written in an override."""
        return str(round(number)) if self.whole else repr(float(number))

    def ends(self) -> tuple[str, ...]:
        """Returns the values that stand for all: every choice, or the smallest and the largest number."""
        return self.choices or tuple(dict.fromkeys((self.text(self.low), self.text(self.high))))


Space = Mapping[str, Dimension]


def size(space: Space) -> int | None:
    """Returns the number of combinations; None: there are infinitely many."""
    counts = [each.count() for each in space.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def combination(space: Space, index: int) -> dict[str, str]:
    """Returns one combination of values by its number; the last key changes fastest, as in a grid of Hydra's."""
    found: dict[str, str] = {}
    for key, dimension in reversed(list(space.items())):
        index, own = divmod(index, dimension.count() or 1)
        found[key] = dimension.value(own)
    return {key: found[key] for key in space}


def index_of(space: Space, values: Mapping[str, str]) -> int | None:
    """Returns the number of a combination, the inverse of `combination`; None: it is no combination of this space."""
    index = 0
    for key, dimension in space.items():
        known = [dimension.value(place) for place in range(dimension.count() or 0)]
        if values.get(key) not in known:
            return None
        index = index * len(known) + known.index(values[key])
    return index


def overrides(values: Mapping[str, str], fixed: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a point: those that all points have, then its values."""
    return (*fixed, *(f"{key}={value}" for key, value in values.items()))
