"""Composes the config of one run from its overrides; what is registered with Hydra; secrets that a config refers to."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import BooleanNode, DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException, ValidationError
from omegaconf.resolvers import oc

from launcher import redaction
from launcher.config.errors import A_LIST, A_SECTION, in_our_words, no_scheduler, no_workload
from launcher.config.keys import WORKLOADS, all_keys, of_other_schedulers
from launcher.config.scheduler_table import cluster_class, schedulers_with
from launcher.config.schema import Config, Env, Launch, SchedulerSettings
from launcher.errors import ConfigError, near
from launcher.fast_dataclasses import Struct
from launcher.paths import default_runs_dir, resource


@contextlib.contextmanager
def interpolated() -> Iterator[dict[str, str]]:
    """Yields a dict that gets NAME of each `${oc.env:NAME}` that is resolved in the block, by the key that has it."""
    found: dict[str, str] = {}

    def environment_variable(name: str, *default: Any, _node_: Any) -> Any:
        found[str(_node_._get_full_key(None))] = name
        return oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", environment_variable, replace=True)
    try:
        yield found
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def require_none(interpolated: Mapping[str, str], patterns: Sequence[str]) -> None:
    """Raises ConfigError if a key (of `interpolated`) has a secret's value, however short; cluster.environment may."""
    for key, variable in interpolated.items():
        own = re.sub(r"^cluster\.(pools\..+\.)?environment\.", "", key)
        if redaction.is_secret(variable, patterns) and (own == key or not redaction.is_secret(own, patterns)):
            raise ConfigError(
                f"{key} has the value of {variable}, a secret (env.secrets), and would be written to the run's record: "
                f"leave it out, and read {variable} from the environment where it is needed"
            )


# -- Composes the config of a run from overrides with Hydra, and converts it to the schema's dataclasses
#
# `register` must be called first. compose_points.py composes the many points of a sweep.


FOR_HYDRA = re.compile(r"-|[+~]*hydra[./=]")  # arguments that are flags, or settings of Hydra
# Keys of `hydra` that only hydra.main applies.
DONE_BY_HYDRA = ("mode", "callbacks", "verbose", "output_subdir", "job.chdir", "job.env_set", "job_logging.root")


class Composed(Struct):
    """A composed config. The configs of a sweep's points share objects, so none may be modified."""

    config: Config  # the config as the schema's dataclasses
    # the same config as plain values (dicts, lists, strings, numbers), with all references resolved
    resolved: dict[str, Any]


def composed(overrides: Sequence[str]) -> Composed:
    """Composes the config of a run from its overrides; raises ConfigError (Hydra, or `typed`, refuses it)."""
    with in_our_words(overrides):
        return finished(by_hydra(overrides)[0])


def by_hydra(overrides: Sequence[str]) -> tuple[DictConfig, bool]:
    """Composes a config with Hydra's compose API, which is faster than hydra.main; raises what `in_our_words` converts.

    Returns the config without its section `hydra`, and whether the user's files set a key that only hydra.main applies.
    """
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        config = compose("config", list(overrides), return_hydra_config=True)
    only_main = any(OmegaConf.select(config.hydra, key) for key in DONE_BY_HYDRA)
    HydraConfig.instance().set_config(config)  # for references ${hydra:...}
    with open_dict(config):
        del config["hydra"]
    return config, only_main


def finished(config: DictConfig) -> Composed:
    """Returns a composed config as dataclasses and plain values; raises ConfigError or OmegaConfBaseException."""
    return Composed(typed(config), plain(config))


def typed(config: DictConfig) -> Config:
    """Returns a composed config as dataclasses; ConfigError: no workload, an unknown key, a secret's value, ..."""
    if OmegaConf.is_missing(config, "workload"):
        raise ConfigError(no_workload())
    _drop_ignored(config.cluster)
    _refuse_unknown(config)
    _require_scheduler(config.cluster)
    with interpolated() as variables:
        result: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    require_none(variables, redaction.all_patterns(result.env.secrets))
    return result


def plain(config: Container) -> Any:
    """Returns a config as dictionaries and lists, with references replaced by values and enums by names."""
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True)


def variables(overrides: Sequence[str], names: Sequence[str], pools: Sequence[str]) -> dict[str, str]:
    """Returns these variables of a config's cluster.environment and pools that have a value; {}: no such profile."""
    found: dict[str, str] = {}
    with contextlib.suppress(ConfigError), in_our_words(overrides):
        cluster = by_hydra(overrides)[0].cluster
        for section in (cluster, *(cluster.pools[each] for each in pools if each in cluster.pools)):
            for name in names:
                with contextlib.suppress(OmegaConfBaseException):  # ${oc.env:NAME} without this variable
                    if (value := section.environment.get(name)) is not None:
                        found.setdefault(name, str(value))
    return found


def _require_scheduler(cluster: DictConfig) -> None:
    name = "NAME" if OmegaConf.is_missing(cluster, "name") else cluster.name
    if OmegaConf.is_missing(cluster, "scheduler"):
        raise ConfigError(no_scheduler(name))
    kind = cluster_class(cluster.scheduler)
    if kind is not None and OmegaConf.get_type(cluster) is not kind:
        raise ConfigError(
            f"cluster.scheduler={cluster.scheduler}: the profile of cluster={name} starts from the keys of another "
            f"scheduler: begin its file with `defaults: [/hydra/schema/cluster/{cluster.scheduler}@_here_, _self_]`"
        )


def _drop_ignored(cluster: DictConfig) -> None:
    # Removes keys of other schedulers if the cluster submits nothing (local), so that a command can be tried there
    kind = OmegaConf.get_type(cluster)
    if kind is not None and issubclass(kind, SchedulerSettings) and kind.IGNORES_OTHERS:
        for key in [str(each) for each in cluster]:
            if key not in kind.__dataclass_fields__ and schedulers_with(key):
                del cluster[key]


def _refuse_unknown(config: DictConfig, prefix: str = "") -> None:
    # Refuses keys that are not in the schema. Hydra itself accepts any new key with a plus (`+key=value`).
    kind = OmegaConf.get_type(config)
    if kind is None or not dataclasses.is_dataclass(kind):
        return
    known = {field.name for field in dataclasses.fields(kind)}
    for key in config:
        full = f"{prefix}{key!s}"
        if key not in known:
            words = f"there is no key {full!r}.{near(full, all_keys(), keys=True)}"
            raise ConfigError(of_other_schedulers(full, kind) or words, key=full)
        child = config._get_node(key)
        if isinstance(child, Container) and child._is_interpolation() and not isinstance(config[key], type(child)):
            problem = A_LIST if isinstance(child, ListConfig) else A_SECTION
            raise ConfigError(f"{full}={child._value()}: {problem}", key=full)
        if not OmegaConf.is_missing(config, key) and isinstance(child, DictConfig):
            _refuse_unknown(child, f"{full}.")


# -- Registers our schema and resolvers with Hydra, and sets how YAML is read, before a config is composed


_omegaconfs_truth = BooleanNode._validate_and_convert_impl
_INTEGER = re.compile(r"[-+]?(0b[0-1_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|0|[1-9][0-9_]*)$")


def register(held_nodes: Callable[[], int]) -> None:
    """Registers the schema and our resolvers with Hydra; held_nodes: number of nodes of this process's allocation."""
    _store_schema()
    OmegaConf.register_new_resolver("launcher.runs_dir", lambda: str(default_runs_dir()), replace=True)
    OmegaConf.register_new_resolver("launcher.held_nodes", held_nodes, replace=True)
    BooleanNode._validate_and_convert_impl = _truth  # type: ignore[method-assign]
    # YAML 1.1 reads 1:30:00 as the number 5400, and 0123 as 83; YAML 1.2 does not.
    yaml.SafeLoader.yaml_implicit_resolvers = {
        start: [(tag, _INTEGER if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers]
        for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _truth(self: BooleanNode, value: Any) -> bool:
    # OmegaConf takes every number but 0 for true
    if isinstance(value, int) and value not in (0, 1):
        raise ValidationError("Value '$VALUE' is not a valid bool")
    return _omegaconfs_truth(self, value)


@contextlib.contextmanager
def registered(held_nodes: Callable[[], int]) -> Iterator[None]:
    """`register` in a block; restores what it has changed for all configs, for a process that is a Hydra app."""
    resolvers, config = yaml.SafeLoader.yaml_implicit_resolvers, HydraConfig.instance().cfg
    truth = BooleanNode._validate_and_convert_impl
    register(held_nodes)
    try:
        yield
    finally:
        yaml.SafeLoader.yaml_implicit_resolvers, HydraConfig.instance().cfg = resolvers, config
        BooleanNode._validate_and_convert_impl = truth  # type: ignore[method-assign]


@cache
def _store_schema() -> None:
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    # In hydra/, so that help and near matches do not offer them as choices.
    store.store(group="hydra/schema", name="launch", node=Launch)
    store.store(group="hydra/schema", name="env", node=Env)
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
    if issubclass(kind, SchedulerSettings) and kind.IGNORES_OTHERS:
        OmegaConf.set_struct(node, False)  # any key may be set, and `_drop_ignored` drops those of other schedulers
    return node
