"""Overrides become configs on this machine: what they take from the allocation that is held is handed in here."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.config import compose, hydra_setup
from launcher.config.compose import Composed
from launcher.schedulers import allocation


def register() -> None:
    """Makes the schema and our resolvers known to Hydra, for the rest of this process: a command line's."""
    hydra_setup.register(_held_nodes)


def composed(overrides: Sequence[str]) -> Composed:
    """The config of one run; this process is as it was afterwards.

    Raises:
        ConfigError: it cannot be composed.
    """
    with hydra_setup.registered(_held_nodes):
        return compose.composed(overrides)


def variables(overrides: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """What a config gives variables; see `compose.variables`."""
    with hydra_setup.registered(_held_nodes):
        return compose.variables(overrides, names)


def _held_nodes() -> int:
    return allocation.nodes(os.environ)
