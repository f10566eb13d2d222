"""What Hydra makes of the same files for the same choices, it makes once a process for all tests.

This is nine tenths of a composition's time. All overrides that choose no file are still applied.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import omegaconf
import pytest
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Node

from launcher.config.scheduler_table import cluster_class, names
from launcher.errors import ConfigError
from launcher.paths import resource

CONF = os.path.realpath(resource("conf"))  # nothing changes while tests run
SCHEMA = "hydra/schema/"  # of a section of the config, before its files
KINDS: dict[int, object] = {}  # classes of profiles by id, which no other class can have while this one is kept


@cache
def is_conf(path: str) -> bool:
    return os.path.realpath(path) == CONF


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Has the compositions of this process inside a `with` block share what they have in common."""
    listed, composed = config_loader_impl.create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
    of_files = file_source()
    made, found, loaded = CachingConfigRepository.__init__, ConfigRepository.load_config, of_files.load_config
    parsed, reference = OverridesParser.parse_rule, cache(omegaconf.grammar_parser.parse)
    choices_of, resolved = defaults_list._create_interpolation_map, InputDefault._resolve_interpolation_impl
    lists: dict[str, DefaultsList] = {}
    configs: dict[str, Any] = {}
    files: dict[tuple[str, str, str], ConfigResult] = {}
    results: dict[tuple[str, str], ConfigResult | None] = {}
    rules: dict[tuple[str, str], Any] = {}
    listing = False  # while a list of defaults is made, which changes nothing that it reads

    def defaults_of(
        repo: CachingConfigRepository, config_name: str, overrides_list: Any, **options: Any
    ) -> DefaultsList:
        mine = Overrides(repo=repo, overrides_list=overrides_list)
        choices = (sorted(mine.override_choices.items()), mine.append_group_defaults, mine.deletions)
        key = repr((sources(repo), config_name, choices, options))
        if key not in lists:
            nonlocal listing
            listing, before = True, dict(repo.cache)
            try:
                lists[key] = listed(repo, config_name, overrides_list, **options)
            finally:
                listing, repo.cache = False, before  # a composition changes what it has read
        result = copy.copy(lists[key])
        result.config_overrides = mine.config_overrides
        return result

    def config_of(self: ConfigLoaderImpl, defaults: Any, repo: IConfigRepository) -> Any:
        key = repr((state(repo, *(each.config_path for each in defaults)), defaults))
        if key not in configs:
            # The files of hydra, of the cluster, ... are merged once for all that go on from there with others.
            cut = max((at for at, each in enumerate(defaults) if at and each.config_path.startswith(SCHEMA)), default=0)
            begun = config_of(self, defaults[:cut], repo) if cut else OmegaConf.create()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(config_loader_impl, "OmegaConf", first_made(begun))
                configs[key] = composed(self, defaults[cut:], repo)
        return copy.deepcopy(configs[key])

    def repository(self: CachingConfigRepository, delegate: IConfigRepository) -> None:
        made(self, None)  # type: ignore[arg-type]
        self.delegate = copy.copy(delegate)  # a deep copy has the schema and all that is stored with it,
        schema = ConfigStore.instance().repo.get("hydra", {}).get("schema", {})
        for group in ("cluster", "workload"):  # and so no class that an earlier composition has asked for
            schema.get(group, {}).clear()

    def result_of(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (state(self, config_path), config_path)
        if key not in results:
            results[key] = found(self, config_path)
        return results[key] if listing else copied(results[key])

    def file_of(self: ConfigSource, config_path: str) -> ConfigResult:
        if not is_conf(self.path):
            return loaded(self, config_path)
        key = (self.provider, self.path, config_path)
        if key not in files:
            files[key] = loaded(self, config_path)
        return copied(files[key])

    def rule_of(self: OverridesParser, text: str, rule_name: str) -> Any:
        if (text, rule_name) not in rules:
            rules[text, rule_name] = parsed(self, text, rule_name)
        return copy.deepcopy(rules[text, rule_name])

    def later(*arguments: Any) -> Any:
        return cache(lambda: choices_of(*arguments))  # of each file, and hardly one asks for it

    def resolved_now(self: InputDefault, choices: Any, value: str | None) -> str:
        return resolved(self, choices(), value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverridesParser, "parse_rule", rule_of)
        patch.setattr(defaults_list, "_create_interpolation_map", later)
        patch.setattr(InputDefault, "_resolve_interpolation_impl", resolved_now)
        for module in (omegaconf.base, omegaconf._utils):  # a reference's tree is only read
            patch.setattr(module, "parse", reference)
        patch.setattr(CachingConfigRepository, "__init__", repository)
        patch.setattr(of_files, "load_config", file_of)
        patch.setattr(ConfigRepository, "load_config", result_of)
        patch.setattr(DictConfig, "__deepcopy__", deep_copy)
        patch.setattr(ListConfig, "__deepcopy__", deep_copy)
        patch.setattr(config_loader_impl, "create_defaults_list", defaults_of)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", config_of)
        yield


def first_made(config: Any) -> type[OmegaConf]:
    """OmegaConf, whose `create` returns this config at its first call."""
    made = iter([config])

    def create(*arguments: Any, **options: Any) -> Any:
        for first in made:
            return first
        return OmegaConf.create(*arguments, **options)

    return type("Begun", (OmegaConf,), {"create": staticmethod(create)})


def deep_copy(self: Node, memo: object) -> Node:
    """As OmegaConf's own, which has `copy` look at each value of each node, and at its types."""
    return copy_below(self, self.__dict__["_parent"])


def copy_below(node: Node, parent: object) -> Node:
    new = object.__new__(type(node))
    new.__dict__.update(node.__dict__, _parent=parent, _flags_cache=None)
    data = node.__dict__["_metadata"]
    new.__dict__["_metadata"] = own = object.__new__(type(data))
    resolved = copy.deepcopy(data.resolver_cache) if data.resolver_cache else defaultdict(dict)
    own.__dict__.update(data.__dict__, flags=dict(data.flags), resolver_cache=resolved)
    inside = node.__dict__.get("_content")
    if isinstance(inside, dict):
        new.__dict__["_content"] = {key: copy_below(each, new) for key, each in inside.items()}
    elif isinstance(inside, list):
        new.__dict__["_content"] = [copy_below(each, new) for each in inside]
    elif isinstance(inside, Node):  # of a union
        new.__dict__["_content"] = copy_below(inside, new)
    return new


def file_source() -> type[ConfigSource]:
    """The class of sources that are folders. Hydra imports its plugins itself: it isn't the one of an import here."""
    Plugins.instance()
    return SourcesRegistry.instance().resolve("file")


def copied(result: ConfigResult | None) -> ConfigResult | None:
    if result is None:
        return None
    new = copy.copy(result)
    new.config, new.header = copy.deepcopy(new.config), dict(new.header)
    return new


def state(repo: IConfigRepository, *config_paths: str) -> str:
    """What these files of a composition depend on: on a folder that a test may write only if it has one of them."""
    found = repo.get_sources()
    own = [source for source in found if isinstance(source, file_source()) and not is_conf(source.path)]
    if any(source.is_config(path) for source in own for path in config_paths):
        return repr(sources(repo))
    return repr((kinds(), [source.path for source in found if source not in own]))


def sources(repo: IConfigRepository) -> list[Any]:
    """Where a composition's files come from, with the state of those that a test may write."""
    return [*kinds(), *((source.provider, *written(source)) for source in repo.get_sources())]


def kinds() -> list[int]:
    """The classes of profiles, which are others once a test has cleared their caches."""
    found = []
    for name in names():
        with contextlib.suppress(ConfigError):  # the package of a scheduler that a test has made
            kind = cluster_class(name)
            KINDS[id(kind)] = kind
            found.append(id(kind))
    return found


def written(source: Any) -> list[Any]:
    if not isinstance(source, file_source()) or is_conf(source.path):
        return [source.path]
    files = [(path.relative_to(source.path), path.stat()) for path in Path(source.path).rglob("*.yaml")]
    return sorted((str(name), stat.st_mtime_ns, stat.st_size) for name, stat in files)
