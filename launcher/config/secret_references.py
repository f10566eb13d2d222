"""Secrets that a config takes from the environment (`${oc.env:NAME}`): only a secret of cluster.environment may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from launcher import redaction
from launcher.errors import ConfigError


@contextlib.contextmanager
def interpolated() -> Iterator[dict[str, str]]:
    """The keys into which `${oc.env:NAME}` comes while values are resolved inside, and NAME."""
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
    """However short the values are. Pure.

    Args:
        interpolated: keys of a config into which `${oc.env:NAME}` has come, and NAME.
        patterns: of the names of secrets.

    Raises:
        ConfigError: a secret stands in a key other than a secret of cluster.environment.
    """
    for key, variable in interpolated.items():
        own = key.removeprefix("cluster.environment.")
        if redaction.is_secret(variable, patterns) and (own == key or not redaction.is_secret(own, patterns)):
            raise ConfigError(
                f"{key} has the value of {variable}, a secret (env.secrets), and would be written to the run's record: "
                f"leave it out, and read {variable} from the environment where it is needed"
            )
