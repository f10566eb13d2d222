"""Composes configs with the number of nodes of the allocation that this process is in (`${launcher.held_nodes:}`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.config import compose, hydra_setup
from launcher.config.compose import Composed
from launcher.schedulers import registry


def register() -> None:
    """Registers the schema and our resolvers with Hydra for the rest of this process, which is our command line."""
    hydra_setup.register(_held_nodes)


def composed(overrides: Sequence[str]) -> Composed:
    """Returns one run's config; Hydra's state in this process is restored; raises ConfigError."""
    with hydra_setup.registered(_held_nodes):
        return compose.composed(overrides)


def variables(overrides: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Returns the values that a config sets for environment variables; see `compose.variables`."""
    with hydra_setup.registered(_held_nodes):
        return compose.variables(overrides, names)


def _held_nodes() -> int:
    return registry.nodes(os.environ)
