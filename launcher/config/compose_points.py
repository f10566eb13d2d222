"""Composes the points of a sweep."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

import omegaconf.base
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from launcher import io_bounds, redaction
from launcher.config import compose
from launcher.config.compose import Composed, finished, plain
from launcher.config.schema import MISSING
from launcher.config.search_space import Dimension
from launcher.errors import ConfigError

# -- Parses the dimensions of a search from overrides, in the syntax of hydra-optuna-sweeper
# | override | values |
# |---|---|
# | `lr=0.1,0.01`, `lr=choice(0.1,0.01)`, `lr=shuffle(...)` | these |
# | `width=range(1,10)`, `range(0,1,step=0.25)` | these, without the end, as in a grid; neighbours are similar |
# | `lr=interval(1e-4,1e-1)` | every number from the first to the second |
# | `width=int(interval(1,64))` | every whole number from the first to the second |
# | `lr=tag(log,interval(1e-4,1e-1))` | every number from the first to the second, spread evenly on a logarithmic scale
# |
# | `workload=ddp_mnist`, `~key` | no dimension: every point has this override |


TAGS = frozenset({"log"})


def space_of(arguments: Sequence[str]) -> tuple[dict[str, Dimension], list[str]]:
    """Returns the dimension of each key that is searched, and the overrides of all points; raises ConfigError."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(arguments))
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
    if not space:
        raise ConfigError("there is nothing to search: give a key several values, 'workload.lr=interval(0.01,0.5)'")
    return space, fixed


def _dimension(override: Override) -> Dimension:
    sweep: Any = override.value()
    if not isinstance(sweep, (ChoiceSweep, RangeSweep, IntervalSweep)):  # a glob
        raise ConfigError(f"{override.input_line}: a search needs the values: {override.key_or_group}=A,B,...")
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
    if len(values) > io_bounds.SEARCH_CHOICES:
        raise ConfigError(f"{override.input_line}: a search takes at most {io_bounds.SEARCH_CHOICES} choices of a key")
    return Dimension(choices=tuple(values))


# -- Composes the configs of many points: Hydra composes one in 100 ms, and the others are derived from it in 0.6 ms
# Points mostly differ in plain values: then only these, and the values that refer to them, are converted. Other points
# (another workload or cluster, keys that are added or deleted, references to Hydra's settings) are composed by Hydra.


# OmegaConf parses a reference each time that it resolves it, which takes as long as all else of a point's config
omegaconf.base.parse = functools.lru_cache(1000)(omegaconf.base.parse)
SHAPES = 16  # configs composed by Hydra that are kept, to derive others from
_NAMES = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")


@dataclass
class _Shape:
    # A config that Hydra has composed, from which the configs of other points are derived

    config: DictConfig  # config object of Hydra, which is modified in place for each derived point
    overrides: list[Override]  # overrides of the last derived point
    composed: Composed  # converted config of the last derived point
    references: dict[str, str]  # text of each value that refers to other keys, by key; for a list, all such texts in it

    def fits(self, overrides: Sequence[Override]) -> bool:
        """Returns whether the config of these overrides can be derived from this one.

        Only plain values may differ, and no override may set a section that contains the key of another override.
        """
        if len(overrides) != len(self.overrides):
            return False
        pairs = [(a, b) for a, b in zip(self.overrides, overrides, strict=True) if a.input_line != b.input_line]
        sections = [f"{each.key_or_group}." for each in overrides if isinstance(each.value(), dict)]
        return all(
            _slot(mine) == _slot(theirs)
            and self._is_plain(theirs.key_or_group)
            and not theirs.key_or_group.startswith(tuple(sections))
            for mine, theirs in pairs
        )

    def _is_plain(self, key: str) -> bool:
        value: Any = self.composed.resolved
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return not isinstance(value, dict)


def of_multirun(loader: ConfigLoader, common: DictConfig) -> Composer:
    """Returns the composer for the points of a multirun, from what they have in common with section `hydra`."""

    def by_hydra(overrides: Sequence[str], number: int) -> DictConfig:
        config = loader.load_sweep_config(common, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"point-{number}", number
            HydraConfig.instance().set_config(config)  # for references ${hydra:...}
            del config["hydra"]
        return config

    return Composer(by_hydra)


class Composer:
    """Composes the configs of points; by_hydra: Hydra's, from overrides and number, without section `hydra`."""

    def __init__(self, by_hydra: Callable[[Sequence[str], int], DictConfig]) -> None:
        self._by_hydra = by_hydra
        self._parse = functools.cache(OverridesParser.create().parse_override)
        self._shapes: list[_Shape] = []

    def __call__(self, overrides: Sequence[str], number: int) -> Composed:
        """Returns the config of a point; raises HydraException, OmegaConfBaseException, or ConfigError."""
        parsed = [self._parse(each) for each in overrides]
        keys = [each.key_or_group for each in parsed]
        if len(set(keys)) == len(keys):  # of repeated keys the last one is valid, which _changed does not know
            for shape in self._shapes:
                if shape.fits(parsed):
                    try:
                        with compose.interpolated() as variables:
                            composed = _changed(shape, parsed)
                        compose.require_none(variables, redaction.all_patterns(composed.config.env.secrets))
                        return composed
                    except Exception:
                        self._shapes.remove(shape)  # it may have changed in part
                        raise
        config = self._by_hydra(overrides, number)
        composed = finished(config)
        shape = _Shape(config, parsed, composed, dict(_references(OmegaConf.to_container(config))))
        if not any("hydra:" in text for text in shape.references.values()):
            self._shapes = [shape, *self._shapes[: SHAPES - 1]]
        return composed


def _slot(override: Override) -> tuple[object, ...]:
    sets = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
    plain = sets and override.package is None and not override.is_sweep_override()
    # A reference is not in _Shape.references, and a section is merged with the values before.
    value = override.value()
    if not plain or "${" in str(override.input_line) or value == MISSING or isinstance(value, dict):
        return (override.input_line,)
    return (override.key_or_group,)


def _changed(shape: _Shape, overrides: list[Override]) -> Composed:
    changed = [
        now for before, now in zip(shape.overrides, overrides, strict=True) if before.input_line != now.input_line
    ]
    for each in changed:  # as Hydra's ConfigLoaderImpl applies them
        OmegaConf.update(shape.config, each.key_or_group, each.value(), merge=True)
        shape.references.pop(each.key_or_group, None)  # it is a plain value now
    typed, resolved = shape.composed.config, shape.composed.resolved
    for key in affected({each.key_or_group for each in changed}, shape.references):
        path = key.split(".")
        value: Any = functools.reduce(operator.getitem, path, shape.config)
        nested = OmegaConf.is_config(value)
        typed = _with(typed, path, OmegaConf.to_object(value) if nested else value)
        resolved = _with(resolved, path, plain(value) if nested else _name(value))
    shape.overrides, shape.composed = overrides, Composed(typed, resolved)
    return shape.composed


def affected(changed: Set[str], references: Mapping[str, str]) -> set[str]:
    """Returns all keys whose values change when the keys in `changed` do: these, and keys that refer to them.

    | the text of a key's reference | the key is affected |
    |---|---|
    | `a-${b.c}`: only names | if b.c, a section that contains it, or a key in it is |
    | `${x:y}`, `${.b}`, `${a.${b}}`: a resolver, a relative or a composed name | always |
    """
    found = {*changed, *(key for key, text in references.items() if "${" in _NAMES.sub("", text))}
    waiting = {key: _NAMES.findall(text) for key, text in references.items() if key not in found}
    while more := {key for key, names in waiting.items() if any(_overlap(a, b) for a in names for b in found)}:
        found |= more
        waiting = {key: names for key, names in waiting.items() if key not in more}
    return found


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _references(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield from _references(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list):
        if texts := [text for value in values for _, text in _references(value)]:
            yield key, " ".join(texts)
    elif isinstance(values, str) and "${" in values:
        yield key, values


def _with(target: Any, path: Sequence[str], value: Any) -> Any:
    # All other values are shared with it
    first, *rest = path
    if dataclasses.is_dataclass(target):
        changed = copy.copy(target)
        setattr(changed, first, _with(getattr(target, first), rest, value) if rest else value)
        return changed
    return {**target, first: _with(target[first], rest, value) if rest else value}


def _name(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
