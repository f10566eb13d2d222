"""Hands the schema to Hydra, and reads the words about its keys out of launcher/config.py."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Iterator

from launcher import config
from launcher.paths import default_runs_dir

OWN_ARGUMENTS = ("workload.kwargs", "workload.flags", "workload.overrides")
OPEN_KEYS = ("cluster.directives", "cluster.environment", *OWN_ARGUMENTS)  # their keys are the user's own
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
    store.store(group="hydra/schema", name="env", node=config.Env)
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


@dataclasses.dataclass(frozen=True)
class Section:
    """Keys that stand together: `prefix` is in front of each of them."""

    prefix: str
    title: str
    kind: type


SECTIONS = (
    Section("", "Keys of every run (KEY=VALUE)", config.Config),
    Section("cluster.", "cluster.KEY: where", config.Cluster),
    Section("cluster.limits.", "cluster.limits.KEY: what one job may ask for", config.Limits),
    Section("launch.", "launch.KEY: how ranks are started", config.Launch),
    Section("env.", "env.KEY: the environment of the ranks", config.Env),
    Section("checkpoint.", "checkpoint.KEY: when a training saves", config.Checkpoint),
    Section("resume.", "resume.KEY: how a run goes on", config.Resume),
    Section("train.", "train.KEY: all trainings", config.Train),
    Section("debug.", "debug.KEY: breakpoints in the job", config.Debug),
    Section("tracking.", "tracking.KEY: trackers", config.Tracking),
    Section("sweep.", "sweep.KEY: multiruns (-m)", config.Sweep),
    *(Section("workload.", f"workload.KEY with workload={name}", kind) for name, kind in WORKLOADS.items()),
)


def all_keys() -> list[str]:
    """Every key of every group, for near matches."""
    return [key.name for section in SECTIONS for key in keys_of(section.kind, section.prefix)]


def workloads_with(key: str) -> list[str]:
    """The workloads that have a key of this whole name (`workload.lr`)."""
    return [
        section.title.rpartition("=")[2]
        for section in SECTIONS
        if section.prefix == "workload." and key in (each.name for each in keys_of(section.kind, section.prefix))
    ]


def groups_help(width: int = 79) -> str:
    """The groups and their choices, for --help; the user's own ones among them."""
    import textwrap

    from launcher.completion import choices
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

    lines = []
    for section in SECTIONS:
        lines.append(f"== {section.title} ==")
        for key in keys_of(section.kind):
            if section.prefix == "workload." and key.name in ("name", "entry", "min_ranks", "seed"):
                continue
            doc = textwrap.wrap(key.doc, width - 24) or [""]
            name = key.name if len(key.name) < 23 else f"{key.name}\n{'':22}"
            lines += [f"  {name:<21} {doc[0]}", *(f"{'':24}{line}" for line in doc[1:])]
        lines.append("")
    return "\n".join(lines)
