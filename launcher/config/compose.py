"""Overrides become the config of a run: Hydra composes it, and the schema's dataclasses come out.

`hydra_setup.register` comes first. For the many points of a sweep see points.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException

from launcher import redaction
from launcher.config import secret_references
from launcher.config.hydra_errors import in_our_words, no_workload
from launcher.config.keys import all_keys
from launcher.config.schema import Config
from launcher.errors import ConfigError, near
from launcher.paths import resource

FOR_HYDRA = re.compile(r"-|[+~]*hydra[./=]")  # flags and Hydra's own settings among the arguments
DONE_BY_HYDRA = ("mode", "callbacks", "verbose", "output_subdir", "job.chdir", "job.env_set", "job_logging.root")


@dataclass(frozen=True)
class Composed:
    """A config as the schema's dataclasses, and as plain values with everything resolved.

    Those of several points share what is equal, so none may be changed.
    """

    config: Config
    resolved: dict[str, Any]


def composed(overrides: Sequence[str]) -> Composed:
    """The config of one run.

    Raises:
        ConfigError: it cannot be composed, or as from `finished`.
    """
    with in_our_words(overrides):
        return finished(by_hydra(overrides)[0])


def by_hydra(overrides: Sequence[str]) -> tuple[DictConfig, bool]:
    """The config without `hydra`, and whether the user's own files have set something that only hydra.main does.

    hydra.main composes every config twice, the first time only to see whether it is a sweep.

    Raises:
        HydraException, OmegaConfBaseException, YAMLError: it cannot be composed.
    """
    with initialize_config_dir(str(resource("conf")), version_base="1.3"):
        config = compose("config", list(overrides), return_hydra_config=True)
    only_main = any(OmegaConf.select(config.hydra, key) for key in DONE_BY_HYDRA)
    HydraConfig.instance().set_config(config)  # what ${hydra:...} refers to
    with open_dict(config):
        del config["hydra"]
    return config, only_main


def finished(config: DictConfig) -> Composed:
    """What Hydra has composed, as a run needs it.

    Raises:
        ConfigError: as from `typed`.
        OmegaConfBaseException: a value is of another type, or refers to nothing.
    """
    return Composed(typed(config), plain(config))


def typed(config: DictConfig) -> Config:
    """The composed config as the dataclasses of its schema.

    Raises:
        ConfigError: no workload was chosen, there is a key that the schema does not know, or the value of a secret
            stands in a key that a run's record has.
    """
    if OmegaConf.is_missing(config, "workload"):
        raise ConfigError(no_workload())
    _refuse_unknown(config)
    if OmegaConf.is_missing(config.cluster, "scheduler"):
        named = "" if OmegaConf.is_missing(config.cluster, "name") else f" of cluster={config.cluster.name}"
        raise ConfigError(
            f"the profile{named} names no scheduler: begin its file with `defaults: [slurm, _self_]`, or pbs"
        )
    with secret_references.interpolated() as variables:
        result: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    secret_references.require_none(variables, redaction.all_patterns(result.env.secrets))
    return result


def plain(config: Container) -> Any:
    """Dictionaries and lists, with every reference replaced by its value and every enum by its name."""
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True)


def variables(overrides: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """What a config gives these variables (cluster.environment); without those that it does not have any more, also
    because it cannot be composed."""
    found: dict[str, str] = {}
    with contextlib.suppress(ConfigError), in_our_words(overrides):
        config, _ = by_hydra(overrides)
        for name in names:
            with contextlib.suppress(OmegaConfBaseException):  # ${oc.env:NAME}, which is not there
                if (value := config.cluster.environment.get(name)) is not None:
                    found[name] = str(value)
    return found


def _refuse_unknown(config: DictConfig, prefix: str = "") -> None:
    """`+key=value` gets past the schema; a misspelt key with a plus in front must not."""
    kind = OmegaConf.get_type(config)
    if kind is None or not dataclasses.is_dataclass(kind):
        return
    known = {field.name for field in dataclasses.fields(kind)}
    for key in config:
        if key not in known:
            raise ConfigError(f"there is no key {prefix + str(key)!r}.{near(prefix + str(key), all_keys())}")
        if not OmegaConf.is_missing(config, key) and isinstance(child := config._get_node(key), DictConfig):
            _refuse_unknown(child, f"{prefix}{key}.")
