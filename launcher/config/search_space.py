"""The search methods of a sweep, and the dimensions of a search, which `compose_points.space_of` parses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum

from launcher.fast_dataclasses import Struct


class Method(Enum):
    """How a search chooses points, and whether it ends some of them early."""

    grid = "grid"  # all combinations, in order
    random = "random"  # at random
    tpe = "tpe"  # by the results so far: a tree-structured Parzen estimator
    asha = "asha"  # at random; points that are behind are pruned: asynchronous successive halving


class Goal(Enum):
    """Whether smaller or larger values of the objective are better."""

    minimize = "minimize"
    maximize = "maximize"


class Dimension(Struct):
    """The values that a search may give to one key: choices, or the numbers from `low` to `high`."""

    # values as text, as after `KEY=` in an override (`0.1`); empty: the values are numbers. low, high: smallest and
    # largest number
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # whether all numbers are whole
    # distance between two numbers; None: any number (or any whole number) from `low` to `high`
    step: float | None = None
    log: bool = False  # whether numbers are spread evenly on a logarithmic scale

    def count(self) -> int | None:
        """Returns how many values there are; None: infinitely many."""
        if self.choices:
            return len(self.choices)
        if self.step is None and not self.whole:
            return None
        return int((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def value(self, index: int) -> str:
        """Returns a value as text for an override, without the key (`0.1`), by its index from 0 to `count() - 1`."""
        if self.choices:
            return self.choices[index]
        if self.whole:
            return self.text(self.low + index * (self.step or 1))
        from decimal import Decimal  # 3 * 0.1 is 0.30000000000000004, and no value of range(0,0.4,0.1) for Optuna

        start = self.low
        if len(repr(start)) > len(repr(self.high)):  # it was computed, and the other end is as the user wrote it
            start, index = self.high, index + 1 - (self.count() or 1)
        return self.text(float(Decimal(repr(start)) + index * Decimal(repr(self.step))))

    def index(self, text: str) -> int | None:
        """Returns the index of a value, the inverse of `value`; None: it is none of these values."""
        if self.choices:
            return self.choices.index(text) if text in self.choices else None
        exact = (float(text) - self.low) / (self.step or 1)
        found = round(exact)
        return found if abs(exact - found) < 1e-6 and 0 <= found < (self.count() or 0) else None

    def readable(self, number: float) -> float:
        """Rounds a number to few digits, by at most 1e-5 of itself and of the range; with a step, to a value."""
        if self.whole:
            return number
        if self.step is not None:
            index = self.index(repr(number))
            return number if index is None else float(self.value(index))
        allowed = 1e-5 * min(abs(number), self.high - self.low)
        short = (float(f"{number:.{digits}g}") for digits in range(1, 17))
        return next((each for each in short if abs(each - number) <= allowed and self.low <= each <= self.high), number)

    def text(self, number: float) -> str:
        """Returns a number of this dimension as text for an override, without the key: `0.1`, or `32` if `whole`."""
        return str(round(number)) if self.whole else repr(float(number))

    def ends(self) -> tuple[str, ...]:
        """Returns, as text, the values to check instead of all: every choice, or the smallest and largest number."""
        count = self.count()
        ends = (self.text(self.low), self.text(self.high)) if count is None else (self.value(0), self.value(count - 1))
        return self.choices or tuple(dict.fromkeys(ends))


Space = Mapping[str, Dimension]


def size(space: Space) -> int | None:
    """Returns how many combinations of values a space has; None: infinitely many."""
    counts = [each.count() for each in space.values()]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def combination(space: Space, index: int) -> dict[str, str]:
    """Returns the value of each key in combination number `index`, as text. The last key changes fastest."""
    found: dict[str, str] = {}
    for key, dimension in reversed(list(space.items())):
        index, own = divmod(index, dimension.count() or 1)
        found[key] = dimension.value(own)
    return {key: found[key] for key in space}


def index_of(space: Space, values: Mapping[str, str]) -> int | None:
    """Returns the index of a combination, the inverse of `combination`; None: the space has no such combination."""
    index = 0
    for key, dimension in space.items():
        own = dimension.index(values[key]) if key in values else None
        if own is None:
            return None
        index = index * (dimension.count() or 1) + own
    return index


def overrides(values: Mapping[str, str], fixed: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of a point: first `fixed`, which all points have, then KEY=VALUE for each of `values`."""
    return (*fixed, *(f"{key}={value}" for key, value in values.items()))
