"""The configs of many points, composed by Hydra once and then changed where they differ.

Hydra takes 0.1 s to compose a config, whether one value of it is another or all are. Points of a sweep mostly differ in
plain values, and then their configs differ in those values only, and in what refers to them. Everything else (another
workload or cluster, keys that are added or deleted, references to Hydra's own settings) is composed by Hydra.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, ListConfig, OmegaConf, grammar_parser, open_dict
from omegaconf.base import Container, Node

from launcher import redaction
from launcher.config import secret_references
from launcher.config.compose import Composed, finished, plain
from launcher.config.schema import MISSING, Config

SHAPES = 16  # compositions by Hydra that are kept


@dataclass
class _Shape:
    """One composition by Hydra, and the overrides that it stands for now."""

    config: DictConfig
    overrides: list[Override]
    typed: Config
    resolved: dict[str, Any]
    references: list[str]  # keys whose values refer to others

    def fits(self, overrides: Sequence[Override]) -> bool:
        """Whether a config with these differs in plain values only, none of which is within what another one sets."""
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
        node = _node(self.config, key)
        return node is not None and not isinstance(node, DictConfig)


def of_multirun(loader: ConfigLoader, common: DictConfig) -> Composer:
    """Composes the points of a multirun.

    Args:
        loader: Hydra's.
        common: the config that the points have in common, Hydra's own settings included.
    """

    def by_hydra(overrides: Sequence[str], number: int) -> DictConfig:
        config = loader.load_sweep_config(common, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = f"point-{number}", number
            HydraConfig.instance().set_config(config)  # what ${hydra:...} refers to
            del config["hydra"]
        return config

    return Composer(by_hydra)


class Composer:
    """Composes one config after the other."""

    def __init__(self, by_hydra: Callable[[Sequence[str], int], DictConfig]) -> None:
        """
        Args:
            by_hydra: composes the config of the point with these overrides and this number, without `hydra`.
        """
        self._by_hydra = by_hydra
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}
        self._shapes: list[_Shape] = []

    def __call__(self, overrides: Sequence[str], number: int) -> Composed:
        """The config with these overrides.

        Raises:
            HydraException, OmegaConfBaseException: they cannot be composed.
            ConfigError: as from `typed`.
        """
        parsed = [self._parse(each) for each in overrides]
        keys = [each.key_or_group for each in parsed]
        if len(set(keys)) == len(keys):  # else the last one counts
            for shape in self._shapes:
                if shape.fits(parsed):
                    try:
                        with secret_references.interpolated() as variables:
                            composed = _changed(shape, parsed)
                        secret_references.require_none(variables, redaction.patterns(composed.config.env.secrets))
                        return composed
                    except Exception:
                        self._shapes.remove(shape)  # it may have changed in part
                        raise
        config = self._by_hydra(overrides, number)
        composed = finished(config)
        shape = _Shape(config, parsed, composed.config, composed.resolved, list(_references(config)))
        if not any("hydra:" in str(_node(config, key)._value()) for key in shape.references):  # type: ignore[union-attr]
            self._shapes = [shape, *self._shapes[: SHAPES - 1]]
        return composed

    def _parse(self, override: str) -> Override:
        if override not in self._parsed:
            self._parsed[override] = self._parser.parse_override(override)
        return self._parsed[override]


def _slot(override: Override) -> tuple[object, ...]:
    """What two overrides have in common that differ in plain values only."""
    sets = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
    plain = sets and override.package is None and not override.is_sweep_override()
    # A reference would be one that the shape does not know of; sections are merged with what was there.
    value = override.value()
    if not plain or "${" in str(override.input_line) or value == MISSING or isinstance(value, dict):
        return (override.input_line,)
    return (override.key_or_group,)


def _changed(shape: _Shape, overrides: list[Override]) -> Composed:
    """The config with these overrides; the shape stands for them afterwards."""
    changed = [
        now for before, now in zip(shape.overrides, overrides, strict=True) if before.input_line != now.input_line
    ]
    for each in changed:  # as Hydra's ConfigLoaderImpl applies them
        OmegaConf.update(shape.config, each.key_or_group, each.value(), merge=True)
    shape.overrides = overrides
    for key in {*(each.key_or_group for each in changed), *shape.references}:
        node = _node(shape.config, key)
        assert node is not None
        value: Any = _target(node) if node._is_interpolation() else node
        path, nested = key.split("."), isinstance(value, Container)
        shape.typed = _with(shape.typed, path, OmegaConf.to_object(value) if nested else value._value())
        shape.resolved = _with(shape.resolved, path, plain(value) if nested else _name(value._value()))
    return Composed(shape.typed, shape.resolved)


def _references(config: Any, prefix: str = "") -> Iterator[str]:
    """The keys of all values that refer to others; of those within a list the list's."""
    keys: Any = config if isinstance(config, DictConfig) else range(len(config))
    for key in keys:
        node = config._get_node(key)
        name = f"{prefix}{key}"
        if node._is_interpolation():
            yield name
        elif isinstance(node, ListConfig):
            if any(True for _ in _references(node)):
                yield name
        elif isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
            yield from _references(node, f"{name}.")


_parse = functools.lru_cache(maxsize=1024)(grammar_parser.parse)  # 2 ms for each text


def _target(reference: Node) -> Any:
    """What a reference refers to, as its own `_dereference_node` finds it."""
    parent = reference._get_parent_container()
    assert parent is not None
    target = parent._resolve_interpolation_from_parse_tree(
        parent=parent, value=reference, key=reference._key(), parse_tree=_parse(reference._value()),
        throw_on_resolution_failure=True, memo=None,
    )  # fmt: skip
    assert target is not None
    return target


def _node(config: DictConfig, key: str) -> Node | None:
    node: Any = config
    for part in key.split("."):
        node = node._get_node(part) if isinstance(node, DictConfig) and not node._is_none() else None
    return node if isinstance(node, Node) else None


def _with(target: Any, path: Sequence[str], value: Any) -> Any:
    """The same with another value at the path; what is beside the path is shared."""
    first, *rest = path
    if dataclasses.is_dataclass(target):
        changed = copy.copy(target)
        setattr(changed, first, _with(getattr(target, first), rest, value) if rest else value)
        return changed
    return {**target, first: _with(target[first], rest, value) if rest else value}


def _name(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
