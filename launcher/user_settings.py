"""The user's own files of settings, in which keys may be written as on the command line. Pure.

| a line of user.yaml | is for Hydra |
|---|---|
| `cluster: slurm` (a group and a name) | `override /cluster: slurm` in the file's defaults list |
| `cluster.account: me` | `account: me` in the section `cluster` |
| `nodes: 2`, `cluster: {account: me}` | as it is |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


def parts(values: Mapping[str, Any], groups: Collection[str]) -> Iterator[dict[str, Any]]:
    """What a file means to Hydra: configs that are to be merged in this order.

    Args:
        values: what is in the file.
        groups: those of which the file may choose one by its name; none, in a file that belongs to a group itself.
    """
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
