"""What Hydra makes of the same files for the same choices, it makes once a process for all tests.

This is four fifths of a composition's time. All overrides are still parsed, and those that choose no file applied.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList, Overrides

from launcher.config.scheduler_table import cluster_class, names
from launcher.errors import ConfigError
from launcher.paths import resource

CONF = os.path.realpath(resource("conf"))  # nothing changes while tests run
KINDS: dict[int, object] = {}  # classes of profiles by id, which no other class can have while this one is kept


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Has the compositions of this process inside a `with` block share what they have in common."""
    listed, composed = config_loader_impl.create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
    lists: dict[str, DefaultsList] = {}
    configs: dict[str, Any] = {}

    def defaults_of(repo: IConfigRepository, config_name: str, overrides_list: Any, **options: Any) -> DefaultsList:
        mine = Overrides(repo=repo, overrides_list=overrides_list)
        choices = (mine.override_choices, mine.append_group_defaults, mine.deletions)
        key = repr((sources(repo), config_name, choices, options))
        if key not in lists:
            lists[key] = listed(repo, config_name, overrides_list, **options)
        found = copy.copy(lists[key])
        found.config_overrides = mine.config_overrides
        return found

    def config_of(self: ConfigLoaderImpl, defaults: Any, repo: IConfigRepository) -> Any:
        key = repr((sources(repo), defaults))
        if key not in configs:
            configs[key] = composed(self, defaults, repo)
        return copy.deepcopy(configs[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_loader_impl, "create_defaults_list", defaults_of)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", config_of)
        yield


def sources(repo: IConfigRepository) -> list[Any]:
    """Where a composition's files come from, with the state of those that a test may write."""
    return [*kinds(), *((source.provider, source.path, *written(source)) for source in repo.get_sources())]


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
    if not isinstance(source, FileConfigSource) or os.path.realpath(source.path) == CONF:
        return []
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in Path(source.path).rglob("*"))
