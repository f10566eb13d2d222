"""Parses the dimensions of a search from overrides, in the syntax of hydra-optuna-sweeper.

| override | values |
|---|---|
| `lr=0.1,0.01`, `lr=choice(0.1,0.01)`, `lr=shuffle(...)` | these |
| `width=range(1,10)`, `range(0,1,step=0.25)` | these, without the end, as in a grid; neighbours are similar |
| `lr=interval(1e-4,1e-1)` | every number from the first to the second |
| `width=int(interval(1,64))` | every whole number from the first to the second |
| `lr=tag(log,interval(1e-4,1e-1))` | every number from the first to the second, spread evenly on a logarithmic scale |
| `workload=ddp_mnist`, `~key` | no dimension: every point has this override |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from launcher import bounds
from launcher.config.search_space import Dimension, Space
from launcher.errors import ConfigError

TAGS = frozenset({"log"})


def space_of(
    arguments: Sequence[str], params: Mapping[str, Any] | None = None
) -> tuple[dict[str, Dimension], list[str]]:
    """Returns the dimension of each key that is searched, and the overrides that all points have.

    Args:
        arguments: overrides from the command line.
        params: the config's `hydra.sweeper.params`, which the command line overrides.

    Raises:
        ConfigError: an override cannot be searched, or there is nothing to search.
    """
    words = [*(f"{key}={value}" for key, value in (params or {}).items()), *arguments]
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise ConfigError(f"the search's values cannot be read: {error}") from None
    last = {each.key_or_group: each for each in parsed}  # of repeated keys the last one is valid
    space: dict[str, Dimension] = {}
    fixed: list[str] = []
    for each in last.values():
        if not each.is_sweep_override():
            fixed.append(str(each.input_line))
        elif each.is_delete() or each.package is not None:
            raise ConfigError(f"{each.input_line}: a search changes values of keys only")
        else:
            space[each.get_key_element()] = _dimension(each)
    return space, fixed


def require_space(space: Space) -> None:
    """Refuses a search without anything to search.

    Raises:
        ConfigError: no key has several values.
    """
    if not space:
        raise ConfigError("there is nothing to search: give a key several values, 'workload.lr=interval(0.01,0.5)'")


def _dimension(override: Override) -> Dimension:
    sweep: Any = override.value()
    if not isinstance(sweep, (ChoiceSweep, RangeSweep, IntervalSweep)):  # a glob
        raise ConfigError(
            f"{override.input_line}: a search needs the values themselves: {override.key_or_group}=A,B,..."
        )
    if unknown := sorted(set(sweep.tags) - TAGS):
        raise ConfigError(f"{override.input_line}: the tag {unknown[0]!r} is not known; the one known is log")
    log = "log" in sweep.tags
    if isinstance(sweep, IntervalSweep):
        return _numbers(override, sweep.start, sweep.end, log=log)
    if log:
        raise ConfigError(f"{override.input_line}: only an interval has a logarithm: tag(log,interval(1e-4,1e-1))")
    if isinstance(sweep, RangeSweep) and not sweep.shuffle:
        return _range(override, sweep)
    return _choices(override)


def _numbers(override: Override, low: Any, high: Any, *, log: bool) -> Dimension:
    whole = isinstance(low, int) and isinstance(high, int)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{override.input_line}: an interval goes from a number to a larger one")
    if log and low <= 0:
        raise ConfigError(f"{override.input_line}: the logarithm needs numbers above 0")
    return Dimension(low=low, high=high, whole=whole, log=log)


def _range(override: Override, sweep: RangeSweep) -> Dimension:
    start, stop, step = sweep.start or 0, sweep.stop, sweep.step or 1
    assert stop is not None
    count = max(0, math.ceil((stop - start) / step - 1e-9)) if step else 0
    if not count:
        raise ConfigError(f"{override.input_line}: it has no values")
    low, high = sorted((start, start + (count - 1) * step))
    whole = all(isinstance(each, int) for each in (start, stop, step))
    if count == 1:
        return Dimension(choices=(str(low),))
    return Dimension(low=low, high=high, whole=whole, step=abs(step))


def _choices(override: Override) -> Dimension:
    values = list(dict.fromkeys(override.sweep_string_iterator()))
    if not values:
        raise ConfigError(f"{override.input_line}: it has no values")
    if len(values) > bounds.SEARCH_CHOICES:
        raise ConfigError(f"{override.input_line}: a search takes at most {bounds.SEARCH_CHOICES} choices of a key")
    return Dimension(choices=tuple(values))
