"""Lists the keys that users can set, with type, default and meaning, from the schema and without Hydra."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from launcher.config import schema
from launcher.config.scheduler_table import OURS, names, scheduler_of, schedulers_with, settings_class
from launcher.fast_dataclasses import Struct

WORKLOADS = {
    "p2p": schema.P2P,
    "collective": schema.Collective,
    "ddp_mnist": schema.DDPMnist,
    "fsdp_lm": schema.FSDPLm,
    "program": schema.Program,
    "function": schema.Function,
}
_hints = cache(get_type_hints)  # they are texts, which it compiles
_FIELD = re.compile(r"    (\w+): [^#]*#(?: type: ignore\[\w+\]  #)? (.*)")


class Key(Struct):
    name: str  # full name with sections (`checkpoint.keep`)
    doc: str  # meaning and unit: the comment after the field in the schema
    default: str | None  # default value as override text; None: the key has no default, or its default is in conf/
    choices: tuple[str, ...] = ()  # possible values; empty: any value of the key's type
    section: bool = False  # whether the key is a section, which has keys of its own

    @property
    def meaning(self) -> str:
        """`doc`, followed by the possible values that it does not mention."""
        missing = [choice for choice in self.choices if choice not in self.doc and choice not in ("true", "false")]
        return self.doc + (f" ({', '.join(missing)})" if missing else "")


def keys_of(kind: type, prefix: str = "") -> Iterator[Key]:
    """Yields the keys of a dataclass of the schema, those of its base classes first, each with a prefix (`launch.`)."""
    bases = [base for base in reversed(kind.__mro__) if dataclasses.is_dataclass(base)]
    docs = {name: doc for base in bases for name, doc in _docs(base.__module__).get(base.__name__, {}).items()}
    for field in dataclasses.fields(kind):
        hint = _hints(kind)[field.name]
        kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type)]
        enums = [each for each in kinds if issubclass(each, Enum)]
        choices = [str(member.value) for each in enums for member in each] or ["true", "false"] * (bool in kinds)
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        section = dataclasses.is_dataclass(hint)
        default = None if section or value == schema.MISSING else written(value)
        yield Key(prefix + field.name, docs.get(field.name, ""), default, tuple(choices), section)


def written(value: Any) -> str:
    """Returns a value as override text for people to read; `overrides.element` also quotes it for Hydra."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _docs(module: str) -> dict[str, dict[str, str]]:
    # Scans the source, since `inspect` would parse the file again for every class
    found: dict[str, dict[str, str]] = {}
    inside: dict[str, str] = {}
    for line in Path(str(sys.modules[module].__file__)).read_text().splitlines():
        if line.startswith("class "):
            inside = found[re.split(r"\W", line)[1]] = {}
        elif match := _FIELD.match(line):
            inside[match[1]] = match[2]
    return found


class KeySection(Struct):
    prefix: str  # prefix of the keys' names (`launch.`)
    title: str  # heading of the group
    kind: type  # dataclass with the keys


@cache
def sections(*, others: bool = True) -> tuple[KeySection, ...]:
    """Returns all groups of keys, in the order of the help; others: also of other packages' schedulers."""
    own = {name: settings_class(name) for name in (names() if others else OURS)}
    return (
        KeySection("", "Keys of every run (KEY=VALUE)", schema.Config),
        KeySection("cluster.", "cluster.KEY: where", schema.Cluster),
        *(
            KeySection("cluster.", f"cluster.KEY with cluster.scheduler={name}", kind)
            for name, kind in own.items()
            if kind is not None and dataclasses.fields(kind)
        ),
        KeySection("cluster.limits.", "cluster.limits.KEY: limits for a job", schema.Limits),
        KeySection("launch.", "launch.KEY: how ranks are started", schema.Launch),
        KeySection("env.", "env.KEY: the environment of the ranks", schema.Env),
        KeySection("checkpoint.", "checkpoint.KEY: when a training saves", schema.Checkpoint),
        KeySection("resume.", "resume.KEY: how a run continues", schema.Resume),
        KeySection("train.", "train.KEY: all trainings", schema.Train),
        KeySection("debug.", "debug.KEY: breakpoints in the job", schema.Debug),
        KeySection("tracking.", "tracking.KEY: trackers", schema.Tracking),
        KeySection("sweep.", "sweep.KEY: multiruns (-m)", schema.Sweep),
        KeySection("sweep.budget.", "sweep.budget.KEY: when a search ends", schema.SearchBudget),
        KeySection("sweep.asha.", "sweep.asha.KEY: when a search prunes", schema.Asha),
        *(KeySection("workload.", f"workload.KEY with workload={name}", kind) for name, kind in WORKLOADS.items()),
    )


def all_keys() -> list[str]:
    """Returns the full names of all keys, to suggest those that are similar to a misspelled one."""
    return list(dict.fromkeys(key.name for section in sections() for key in keys_of(section.kind, section.prefix)))


def workloads_with(key: str) -> list[str]:
    """Returns the names of the workloads that have a key with this full name (`workload.lr`)."""
    return [name for name, kind in WORKLOADS.items() if key in (each.name for each in keys_of(kind, "workload."))]


def known_keys(words: Iterable[str]) -> dict[str, Key]:
    """Returns the keys that are no sections, without those of workloads and schedulers that the words do not choose."""
    chosen = dict(word.split("=", 1) for word in words if word.startswith(("workload=", "cluster=")))
    workload, scheduler = WORKLOADS.get(chosen.get("workload", "")), ""
    if cluster := chosen.get("cluster"):
        from launcher.config.profiles import profiles

        scheduler = next((each.scheduler for each in profiles() if each.name == cluster), "")
    settings = settings_class(scheduler)
    found: dict[str, Key] = {}
    for section in sections(others=scheduler not in OURS):
        kinds = {schema.Workload: workload, schema.SchedulerSettings: settings}
        if all(own in (None, section.kind) for kind, own in kinds.items() if issubclass(section.kind, kind)):
            for key in (each for each in keys_of(section.kind, section.prefix) if not each.section):
                same = found.get(key.name, key).doc == key.doc  # else one of several meanings would be a guess
                found[key.name] = key if same else dataclasses.replace(key, doc="")
    return found


def of_cluster(key: str) -> str:
    """Returns `chunk` for cluster.chunk.mem; empty: a key of another section."""
    section, _, name = key.partition(".")
    return name.partition(".")[0] if section == "cluster" else ""


def of_other_schedulers(key: str, kind: type | None) -> str | None:
    """Returns the error about a key (`cluster.queue`) that only other schedulers than this profile's have, or None."""
    name, scheduler = of_cluster(key), scheduler_of(kind)
    if scheduler is None or not (owners := schedulers_with(name)):
        return None
    settings = settings_class(scheduler)
    instead = settings.INSTEAD.get(name, "leave it out") if settings else ""
    return f"cluster.{name} is a key for {' and '.join(owners)}, and the cluster is {scheduler}: {instead}"
