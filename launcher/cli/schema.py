"""Hands the schema to Hydra, and reads the words about its keys out of launcher/config.py."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Iterator

from launcher import config
from launcher.paths import default_runs_dir

OPEN_KEYS = ("cluster.directives", "cluster.environment", "workload.kwargs")  # their keys are the user's own
WORKLOADS = {
    "p2p": config.P2P,
    "collective": config.Collective,
    "ddp_mnist": config.DDPMnist,
    "fsdp_lm": config.FSDPLm,
    "program": config.Program,
    "function": config.Function,
}
_FIELD = re.compile(r"    (\w+): [^#]*#(?: type: ignore\[\w+\]  #)? (.*)")


def register() -> None:
    """Makes the schema and our resolvers known; before anything is composed."""
    import yaml
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    store.store(name="schema", node=config.Config)
    # Below hydra/, so that help and near matches do not offer them as choices.
    store.store(group="hydra/schema", name="cluster", node=config.Cluster)
    store.store(group="hydra/schema", name="launch", node=config.Launch)
    for name, kind in WORKLOADS.items():
        store.store(group="hydra/schema/workload", name=name, node=kind)
    OmegaConf.register_new_resolver("launcher.runs_dir", lambda: str(default_runs_dir()), replace=True)
    OmegaConf.register_new_resolver("launcher.held_nodes", _held_nodes, replace=True)
    OmegaConf.register_new_resolver("launcher.keys", keys_help, replace=True)
    OmegaConf.register_new_resolver("launcher.groups", groups_help, replace=True)
    # YAML 1.1 reads 1:30:00 in a file as the number 5400; YAML 1.2, and people, do not.
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        yaml.SafeLoader.yaml_implicit_resolvers[start] = [
            (tag, _INTEGER if tag == "tag:yaml.org,2002:int" else pattern) for tag, pattern in resolvers
        ]


def _held_nodes() -> int:
    from launcher import held  # only cluster=allocation asks

    return held.nodes(os.environ)


_INTEGER = re.compile(r"[-+]?(0b[0-1_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key that a user may set, and what it means."""

    name: str
    doc: str


def keys_of(kind: type, prefix: str = "") -> Iterator[Key]:
    """The keys of one dataclass of the schema, its bases' first."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        matches = map(_FIELD.match, inspect.getsource(base).splitlines())
        docs |= {match[1]: match[2] for match in matches if match}
    for field in dataclasses.fields(kind):
        yield Key(prefix + field.name, docs.get(field.name, ""))


def all_keys() -> list[str]:
    """Every key of every group, for near matches."""
    names = [key.name for key in keys_of(config.Config)]
    for prefix, kind in _sections():
        names += [key.name for key in keys_of(kind, prefix)]
    names += [key.name for key in keys_of(config.Limits, "cluster.limits.")]
    return names


def _sections() -> list[tuple[str, type]]:
    return [
        ("cluster.", config.Cluster),
        ("launch.", config.Launch),
        ("checkpoint.", config.Checkpoint),
        ("resume.", config.Resume),
        ("train.", config.Train),
        ("debug.", config.Debug),
        ("tracking.", config.Tracking),
        ("sweep.", config.Sweep),
        *(("workload.", kind) for kind in WORKLOADS.values()),
    ]


def groups_help(width: int = 79) -> str:
    """The groups and their choices, for --help; the user's own ones among them."""
    import textwrap

    from launcher.cli.profile_errors import choices
    from launcher.paths import resource

    groups = sorted(path.name for path in resource("conf").iterdir() if path.is_dir() and path.name != "hydra")
    lines = [
        textwrap.fill(f"{group}: {', '.join(choices(group))}", width, initial_indent="  ", subsequent_indent="    ")
        for group in groups
    ]
    return "\n".join([*lines, ""])


def keys_help(width: int = 79) -> str:
    """The keys with their meaning, for --help; two columns, 80 wide."""
    import textwrap

    def table(title: str, keys: Iterator[Key]) -> list[str]:
        lines = [f"== {title} =="]
        for key in keys:
            if key.name in ("name", "entry", "min_ranks", "seed") and "workload" in title:
                continue
            doc = textwrap.wrap(key.doc, width - 24) or [""]
            name = key.name if len(key.name) < 23 else f"{key.name}\n{'':22}"
            lines += [f"  {name:<21} {doc[0]}", *(f"{'':24}{line}" for line in doc[1:])]
        return [*lines, ""]

    lines = table("Keys of every run (KEY=VALUE)", keys_of(config.Config))
    lines += table("cluster.KEY: where", keys_of(config.Cluster))
    lines += table("cluster.limits.KEY: what one job may ask for", keys_of(config.Limits))
    lines += table("launch.KEY: how ranks are started", keys_of(config.Launch))
    lines += table("checkpoint.KEY: when a training saves", keys_of(config.Checkpoint))
    lines += table("resume.KEY: how a run goes on", keys_of(config.Resume))
    lines += table("train.KEY: all trainings", keys_of(config.Train))
    lines += table("debug.KEY: breakpoints in the job", keys_of(config.Debug))
    lines += table("tracking.KEY: trackers", keys_of(config.Tracking))
    lines += table("sweep.KEY: multiruns (-m)", keys_of(config.Sweep))
    for name, kind in WORKLOADS.items():
        lines += table(f"workload.KEY with workload={name}", keys_of(kind))
    return "\n".join(lines)
