"""Converts the user's settings files, whose keys may be written as on the command line, to Hydra configs.

| a line of user.yaml | becomes, for Hydra |
|---|---|
| `cluster: slurm` (a group and a name) | `override /cluster: slurm` in the file's defaults list |
| `cluster.account: me` | `account: me` in the section `cluster` |
| `nodes: 2`, `cluster: {account: me}` | the same |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


def hydra_configs(values: Mapping[str, Any], groups: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields Hydra configs that, merged in this order, have the effect of a settings file; groups: it may choose."""
    chosen = []
    for key, value in values.items():
        if key in groups and (value is None or isinstance(value, str)):
            chosen.append({f"override /{key}": value})
            continue
        for section in reversed(str(key).split(".")):
            value = {section: value}
        yield value
    if chosen:
        yield {"defaults": [*values.get("defaults", ()), *chosen]}
