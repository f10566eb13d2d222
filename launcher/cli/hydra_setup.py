"""What Hydra has to know before it composes a config: our schema, our resolvers, and how we read YAML."""

from __future__ import annotations

import os
import re

from launcher.config import registration
from launcher.paths import default_runs_dir
from launcher.schedulers import allocation

_INTEGER = re.compile(r"[-+]?(0b[0-1_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$")


def register() -> None:
    """Makes the schema and our resolvers known; before anything is composed."""
    import yaml
    from omegaconf import OmegaConf

    registration.store_schema()
    OmegaConf.register_new_resolver("launcher.runs_dir", lambda: str(default_runs_dir()), replace=True)
    OmegaConf.register_new_resolver("launcher.held_nodes", _held_nodes, replace=True)
    # YAML 1.1 reads 1:30:00 in a file as the number 5400; YAML 1.2, and people, do not.
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        yaml.SafeLoader.yaml_implicit_resolvers[start] = [
            (tag, _INTEGER if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers
        ]


def _held_nodes() -> int:
    return allocation.nodes(os.environ)
