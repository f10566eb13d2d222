"""Refuses references of a config to secrets in the environment (`${oc.env:NAME}`), except in cluster.environment."""

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
    """Records the references `${oc.env:NAME}` that are resolved inside the `with` block.

    Yields a dict that gets the NAME of each resolved reference, by the config key that has it.
    """
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
    """Checks that no key has the value of a secret, however short the value is.

    interpolated: what `interpolated` has recorded: names of variables, by the config key that refers to them.
    Raises ConfigError: a key has the value of a secret. (A secret variable of cluster.environment may have one.)
    """
    for key, variable in interpolated.items():
        own = key.removeprefix("cluster.environment.")
        if redaction.is_secret(variable, patterns) and (own == key or not redaction.is_secret(own, patterns)):
            raise ConfigError(
                f"{key} has the value of {variable}, a secret (env.secrets), and would be written to the run's record: "
                f"leave it out, and read {variable} from the environment where it is needed"
            )
