"""The sections of a plan, which are those of the config, and how a config's values become a plan's. Pure.

A field has the name of its key, and the type that the key's value has when it is resolved: seconds, bytes, tuples,
texts of enums. `resolved` reads out of the schema how; what no single key says is computed where the plan is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from launcher.config.schema import Form
from launcher.errors import ConfigError
from launcher.units import parse_memory, parse_time

S = TypeVar("S")


@dataclass(frozen=True)
class Cluster:
    """Keys of `cluster`, without those that only the submitting machine needs."""

    name: str
    scheduler: str
    partition: str | None
    queue: str | None
    account: str | None
    project: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    exclude: str | None
    place: str | None
    chunk: Mapping[str, Any]
    resources: Mapping[str, Any]
    totals: bool
    gpu_directive: str
    gpu_type: str | None
    directives: Mapping[str, Any]
    srun_args: tuple[str, ...]
    mpiexec: tuple[str, ...]
    setup: tuple[str, ...]
    template: str | None
    environment: Mapping[str, str | None]  # without secrets
    nics: tuple[str, ...]  # by GPU, else by local rank
    rank_environment: Mapping[str, str]  # in which {nic} stands for the rank's own
    expects: Mapping[str, list[str]]  # of NCCL's report; see launcher/worker/nccl_report.py
    interface: str | None
    host_suffix: str
    port_range: tuple[int, int]
    submit_timeout: int  # seconds


@dataclass(frozen=True)
class Launch:
    """Keys of `launch`; times are in seconds."""

    mode: str
    rendezvous_timeout: int
    timeout: int
    grace: int
    max_restarts: int
    hang_timeout: int
    start_timeout: int
    idle_timeout: int
    heartbeat: int
    visible_devices: str
    bind: str  # the CPUs that a rank may use; see launcher/binding/wanted.py


@dataclass(frozen=True)
class Env:
    """Keys of `env`."""

    modules: tuple[str, ...]
    activate: str | None
    setup: tuple[str, ...]
    archive: str | None
    container: str | None
    container_runtime: str
    container_args: tuple[str, ...]
    binds: tuple[str, ...]
    python: str
    snapshot_limit: int  # bytes
    secrets: tuple[str, ...]  # all patterns of names of secrets, with those that always count


@dataclass(frozen=True)
class Checkpoint:
    """Keys of `checkpoint`; times are in seconds."""

    every: int | None
    every_steps: int | None
    keep: int
    best: str | None
    best_is: str
    dir: str
    background: bool
    verify: bool
    read_timeout: int
    timeout: int
    max_failures: int
    check_replicas: bool
    start_over: bool


@dataclass(frozen=True)
class Resume:
    """Keys of `resume`."""

    how: str
    max_attempts: int
    lead: int  # seconds
    strict: bool


@dataclass(frozen=True)
class Train:
    """Keys of `train`."""

    invariant: bool
    micro_batches: int
    straggler_factor: float
    straggler_time: int  # seconds


@dataclass(frozen=True)
class Debug:
    """Keys of `debug`."""

    ranks: tuple[int, ...]  # those that stop at breakpoint()
    post_mortem: bool


@dataclass(frozen=True)
class Tracking:
    """Keys of `tracking`."""

    experiment: str
    uri: str | None
    dir: str | None
    project: str | None
    entity: str | None
    mode: str | None


@dataclass(frozen=True)
class Workload:
    """Keys of `workload`: those that every workload has, and all of them in `params`."""

    name: str
    entry: str  # module:function
    backend: str
    device: str
    kind: str  # class of its schema in launcher.config.schema
    params: Mapping[str, Any]  # all of its keys, as plain values


@dataclass(frozen=True)
class Code:
    """Where a snapshot is; without one the code is where it was when the run was submitted.

    Attributes:
        snapshot: a copy of the code, of which the plan's workdir and `path` are folders.
        repository: what it is a copy of.
        path: folders of it that Python searches.
    """

    snapshot: str | None = None
    repository: str | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """What is known of env.archive.

    Attributes:
        digest: its sha256.
        of: the environment that it was made of.
        import_time: seconds that importing torch from there took.
    """

    digest: str = ""
    of: str | None = None
    import_time: float = 0.0


def resolved(part: type[S], config: Any, prefix: str = "", /, **own: Any) -> S:
    """A part of a plan: for each of its fields the value of the key of this name.

    Args:
        part: its class.
        config: the part of the config that it mirrors, an object of a class of the schema.
        prefix: of its keys (`launch.`), for errors.
        own: values of fields that need more than their key.

    Raises:
        ConfigError: a value cannot be used; it names the key, the value and the fix.
    """
    names = [each.name for each in fields(part) if each.name not in own]  # type: ignore[arg-type]
    return part(**{name: resolved_value(config, name, prefix) for name in names}, **own)


def resolved_value(config: Any, name: str, prefix: str = "") -> Any:
    """A key's value as a plan has it.

    Raises:
        ConfigError: as for `resolved`.
    """
    section: Any = type(config)
    value, form = getattr(config, name), _forms(section).get(name)
    if value is None:
        return None
    return plain(value) if form is None else _FORMS[form](f"{prefix}{name}", value)


def plain(value: Any) -> Any:
    """The texts of enums, tuples for lists; sections have names."""
    if isinstance(value, Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


@cache
def _forms(kind: Any) -> dict[str, Form]:
    """The form of each key that has one."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Form] = {}
    for name, hint in hints.items():
        for each in (hint, *get_args(hint)):  # of `Time | None` too
            for form in getattr(each, "__metadata__", ()):
                found[name] = form
    return found


def _time(key: str, value: str) -> int:
    try:
        return parse_time(value)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _memory(key: str, value: str) -> int:
    try:
        return parse_memory(value)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _natural(key: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{key}={value}: it must be 1 or more")
    return value


def _above_one(key: str, value: float) -> float:
    if not 1 < value < float("inf"):
        raise ConfigError(f"{key}={value:g}: it must be more than 1")
    return value


def _ports(key: str, value: str) -> tuple[int, int]:
    low, _, high = value.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) < int(high) <= 65535):
        raise ConfigError(f"{key}={value!r} is not LOW-HIGH with 1024 <= LOW < HIGH <= 65535")
    return int(low), int(high)


def _flat(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if not (value is None or isinstance(value, (str, int, float, bool))):
            raise ConfigError(f"{key}.{name}: {value!r} is neither text nor a number")
    return dict(values)


_FORMS: Mapping[Form, Callable[[str, Any], Any]] = {
    Form.time: _time, Form.memory: _memory, Form.natural: _natural, Form.above_one: _above_one, Form.ports: _ports,
    Form.flat: _flat,
}  # fmt: skip
