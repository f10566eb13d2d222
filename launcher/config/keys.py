"""Lists the keys that users can set, with type, default and meaning, from the schema and without Hydra."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from launcher.config import schema
from launcher.config.overrides import key_of, quoted
from launcher.config.scheduler_table import OURS, names, scheduler_of, schedulers_with, settings_class
from launcher.errors import ConfigError
from launcher.fast_dataclasses import Struct

OWN_ARGUMENTS = ("workload.kwargs", "workload.flags", "workload.overrides")
OF_CLUSTER = ("directives", "environment", "rank_environment", "expects", "chunk", "resources")
OPENED = (*(f"cluster.{name}" for name in OF_CLUSTER), *OWN_ARGUMENTS)  # new keys in them need no `+`
WORKLOADS = {
    "p2p": schema.P2P,
    "collective": schema.Collective,
    "ddp_mnist": schema.DDPMnist,
    "fsdp_lm": schema.FSDPLm,
    "program": schema.Program,
    "function": schema.Function,
}
_RACE = re.compile(r"^(\+*cluster\.race=)\[([^]'\"[]*)\]$")
# What Hydra takes for a number, or for true or false
_NO_TEXT = re.compile(r"[+-]?(?:[\d_]*\.?\d[\d_]*\.?(?:e[+-]?[\d_]+)?|inf|nan)|true|false", re.IGNORECASE)
_hints = cache(get_type_hints)  # they are texts, which it compiles
_FIELD = re.compile(r"    (\w+): [^#]*#(?: type: ignore\[\w+\]  #)? (.*)")


class Key(Struct):
    """A key that a user can set."""

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
    """A group of keys in the help."""

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


def _of_cluster(key: str) -> str:
    # `chunk` of cluster.chunk.mem; empty: a key of another section
    section, _, name = key.partition(".")
    return name.partition(".")[0] if section == "cluster" else ""


def of_other_schedulers(key: str, kind: type | None) -> str | None:
    """Returns the error about a key (`cluster.queue`) that only other schedulers than this profile's have, or None."""
    name, scheduler = _of_cluster(key), scheduler_of(kind)
    if scheduler is None or not (owners := schedulers_with(name)):
        return None
    settings = settings_class(scheduler)
    instead = settings.INSTEAD.get(name, "leave it out") if settings else ""
    return f"cluster.{name} is a key for {' and '.join(owners)}, and the cluster is {scheduler}: {instead}"


def require_cluster(words: Sequence[str], scheduler: str) -> None:
    """Raises ConfigError if a key of another scheduler was typed without `cluster=`, and would be ignored (local)."""
    settings = settings_class(scheduler)
    if settings is None or not settings.IGNORES_OTHERS or any(key_of(word) == "cluster" for word in words):
        return
    for word in words:
        own = _of_cluster(key_of(word))
        if own and own not in settings.__dataclass_fields__ and (owners := schedulers_with(own)):
            raise ConfigError(
                f"{as_typed(word)}: without cluster= this runs on {scheduler}, which ignores it: add "
                f"cluster={owners[0]}, or cluster={scheduler} if you mean that"
            )


def opened(words: Iterable[str]) -> list[str]:
    """Converts overrides as users type them to Hydra's.

    Adds `++` where Hydra requires it for keys not in the schema, which are names of the user's own in the sections of
    `OPENED` (`cluster.environment.NAME=1`); quotes texts that Hydra would take for numbers and write in another way
    (`cluster.account=2024_017`), and what is in `cluster.race=[partition=a,partition=b]`.
    """
    own = tuple(f"{key}{rest}" for key in OPENED for rest in (".", "={"))
    words = [_RACE.sub(_quoted_members, _as_text(word)) for word in words]
    return [f"++{word}" if word.startswith(own) else word for word in words]


def _as_text(word: str) -> str:
    key, _, value = word.partition("=")
    parts = [each.strip() for each in value.split(",")]  # values of a multirun
    if key.startswith("~") or set(value) & set("'\"()[]{}\\") or not any(map(_is_changed, parts)) or not _is_text(key):
        return word
    return f"{key}={','.join(quoted(each) if _is_changed(each) else each for each in parts)}"


def _is_changed(value: str) -> bool:
    if not _NO_TEXT.fullmatch(value):
        return False
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return str(kind(value)) != value
    return True


def _is_text(key: str) -> bool:
    # Not a text with a form of its own (`time=1_800`)
    section, _, name = key.lstrip("+").rpartition(".")
    if section in ("cluster.environment", "cluster.rank_environment"):
        return True
    hints = (get_type_hints(kind, include_extras=True).get(name) for kind in _kinds_of(section))
    return next(filter(None, hints), None) in (str, str | None)


def _kinds_of(section: str) -> Iterator[type]:
    # One by one: the keys of other schedulers are not loaded to find one that all have
    if section == "workload":
        yield from WORKLOADS.values()
    elif section == "cluster":
        yield schema.Cluster
        yield from filter(None, map(settings_class, names()))
    elif isinstance(kind := get_type_hints(schema.Config).get(section) if section else schema.Config, type):
        yield kind


def _quoted_members(found: re.Match[str]) -> str:
    return f"{found[1]}[{','.join(quoted(each.strip()) for each in found[2].split(','))}]"


def as_typed(word: str) -> str:
    """Returns an override as the user typed it, without the `++` that `opened` has added."""
    short = word.removeprefix("++")
    return short if opened([short]) == [word] else word
