"""Every key that a user may set: its name, type, default and meaning, read out of the schema, without Hydra."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from launcher.config import schema

OWN_ARGUMENTS = ("workload.kwargs", "workload.flags", "workload.overrides")
OPEN_KEYS = ("cluster.directives", "cluster.environment", *OWN_ARGUMENTS)  # their keys are the user's own
WORKLOADS = {
    "p2p": schema.P2P,
    "collective": schema.Collective,
    "ddp_mnist": schema.DDPMnist,
    "fsdp_lm": schema.FSDPLm,
    "program": schema.Program,
    "function": schema.Function,
}
_FIELD = re.compile(r"    (\w+): [^#]*#(?: type: ignore\[\w+\]  #)? (.*)")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key that a user may set.

    Attributes:
        name: the whole name, with the sections that it is in.
        doc: what it means, and its unit.
        default: as it is written in an override; None: it has none, or conf/ has it.
        choices: its values, where there are only some.
        section: whether it has keys of its own.
    """

    name: str
    doc: str
    default: str | None
    choices: tuple[str, ...] = ()
    section: bool = False

    @property
    def meaning(self) -> str:
        """Its words, and the values that they do not list."""
        missing = [choice for choice in self.choices if choice not in self.doc and choice not in ("true", "false")]
        return self.doc + (f" ({', '.join(missing)})" if missing else "")


def keys_of(kind: type, prefix: str = "") -> Iterator[Key]:
    """The keys of one dataclass of the schema, its bases' first."""
    docs = {name: doc for base in reversed(kind.__mro__) for name, doc in _docs().get(base.__name__, {}).items()}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type)]
        enums = [each for each in kinds if issubclass(each, Enum)]
        choices = [str(member.value) for each in enums for member in each] or ["true", "false"] * (bool in kinds)
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        section = dataclasses.is_dataclass(hint)
        default = None if section or value == schema.MISSING else written(value)
        yield Key(prefix + field.name, docs.get(field.name, ""), default, tuple(choices), section)


def written(value: Any) -> str:
    """A default, or a value of a file, as it looks in an override."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=1)
def _docs() -> dict[str, dict[str, str]]:
    """The comment behind each field of each class; `inspect` would parse the file again for every class."""
    found: dict[str, dict[str, str]] = {}
    inside: dict[str, str] = {}
    for line in Path(schema.__file__).read_text().splitlines():
        if line.startswith("class "):
            inside = found[re.split(r"\W", line)[1]] = {}
        elif match := _FIELD.match(line):
            inside[match[1]] = match[2]
    return found


@dataclasses.dataclass(frozen=True)
class Section:
    """Keys that stand together: `prefix` is in front of each of them."""

    prefix: str
    title: str
    kind: type


SECTIONS = (
    Section("", "Keys of every run (KEY=VALUE)", schema.Config),
    Section("cluster.", "cluster.KEY: where", schema.Cluster),
    Section("cluster.limits.", "cluster.limits.KEY: what one job may ask for", schema.Limits),
    Section("launch.", "launch.KEY: how ranks are started", schema.Launch),
    Section("env.", "env.KEY: the environment of the ranks", schema.Env),
    Section("checkpoint.", "checkpoint.KEY: when a training saves", schema.Checkpoint),
    Section("resume.", "resume.KEY: how a run goes on", schema.Resume),
    Section("train.", "train.KEY: all trainings", schema.Train),
    Section("debug.", "debug.KEY: breakpoints in the job", schema.Debug),
    Section("tracking.", "tracking.KEY: trackers", schema.Tracking),
    Section("sweep.", "sweep.KEY: multiruns (-m)", schema.Sweep),
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


def types_of_keys(words: Iterable[str]) -> dict[str, Any]:
    """Every key with the type of its value; those of `workload.` are of the workload that the words choose, if one."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(schema.Config).items():
        if name == "workload":
            chosen = [word.partition("=")[2] for word in words if word.startswith("workload=")]
            kinds = [WORKLOADS[each] for each in chosen[-1:] if each in WORKLOADS] or list(WORKLOADS.values())
        else:
            kinds = [kind]
        for each in kinds:
            found.update(_types_below(name, each))
    return found


def _types_below(name: str, kind: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(kind, "__dataclass_fields__"):
        for inner, each in get_type_hints(kind).items():
            yield from _types_below(f"{name}.{inner}", each)
    else:
        yield name, kind


def opened(words: Iterable[str]) -> list[str]:
    """The arguments of a function or a program are its own: new keys, which Hydra wants a plus in front of. Pure."""
    own = tuple(f"{key}." for key in OWN_ARGUMENTS)
    return [f"++{word}" if word.startswith(own) else word for word in words]
