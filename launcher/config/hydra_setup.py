"""Registers our schema and resolvers with Hydra, and sets how YAML is read, before a config is composed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import yaml
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from launcher.config import schema
from launcher.config.keys import WORKLOADS
from launcher.config.scheduler_table import cluster_class
from launcher.paths import default_runs_dir

_INTEGER = re.compile(r"[-+]?(0b[0-1_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$")


def register(held_nodes: Callable[[], int]) -> None:
    """Registers the schema and our resolvers with Hydra, before a config is composed.

    held_nodes: of the resolver `${launcher.held_nodes:}`: the number of nodes of this process's allocation.
    """
    _store_schema()
    OmegaConf.register_new_resolver("launcher.runs_dir", lambda: str(default_runs_dir()), replace=True)
    OmegaConf.register_new_resolver("launcher.held_nodes", held_nodes, replace=True)
    # YAML 1.1 reads 1:30:00 as the number 5400; YAML 1.2 does not.
    yaml.SafeLoader.yaml_implicit_resolvers = {
        start: [(tag, _INTEGER if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers]
        for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@contextlib.contextmanager
def registered(held_nodes: Callable[[], int]) -> Iterator[None]:
    """`register` in a block; restores YAML's resolvers and Hydra's global config, for a process that is a Hydra app."""
    resolvers, config = yaml.SafeLoader.yaml_implicit_resolvers, HydraConfig.instance().cfg
    register(held_nodes)
    try:
        yield
    finally:
        yaml.SafeLoader.yaml_implicit_resolvers, HydraConfig.instance().cfg = resolvers, config


@cache
def _store_schema() -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=schema.Config)
    # In hydra/, so that help and near matches do not offer them as choices.
    store.store(group="hydra/schema", name="launch", node=schema.Launch)
    store.store(group="hydra/schema", name="env", node=schema.Env)
    groups = store.repo["hydra"]["schema"]
    groups["cluster"], groups["workload"] = _Classes("cluster", _cluster), _Classes("workload", WORKLOADS.get)


class _Classes(dict[str, Any]):
    # A group (below `hydra/schema`) of Hydra's config store that makes a dataclass's node when a config names it

    def __init__(self, group: str, find: Callable[[str], Any]) -> None:
        super().__init__()
        self._group, self._find = group, find

    def __contains__(self, file: object) -> bool:
        if not super().__contains__(file):
            name = str(file).removesuffix(".yaml")
            if (node := self._find(name)) is None:
                return False
            group, config = f"hydra/schema/{self._group}", OmegaConf.structured(node)
            self[str(file)] = ConfigNode(name=str(file), node=config, group=group, package=None, provider=None)
        return True


def _cluster(name: str) -> Any:
    kind = cluster_class(name)
    if kind is None:
        return None
    node = OmegaConf.structured(kind)
    if issubclass(kind, schema.SchedulerSettings) and kind.IGNORES_OTHERS:
        OmegaConf.set_struct(node, False)  # any key may be set, and compose.py drops those of other schedulers
    return node
