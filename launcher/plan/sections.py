"""The sections of a plan, and the conversion of config values to plan values.

Sections and fields have the same names as in the config. Values are converted by the types in the schema: times to
seconds, sizes to bytes, lists to tuples, enums to strings. Values that depend on several keys are computed in build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from launcher.config.schema import Form
from launcher.errors import ConfigError
from launcher.structs import Struct
from launcher.units import parse_memory, parse_time

S = TypeVar("S", bound=Struct)


class Cluster(Struct):
    """The section `cluster` of a plan, without the keys that only the submitting machine needs."""

    name: str
    scheduler: str
    account: str | None
    settings: Mapping[str, Any]  # keys that only this scheduler has, as plain values; see `plan.settings_of`
    directives: Mapping[str, Any]
    setup: tuple[str, ...]
    template: str | None
    environment: Mapping[str, str | None]  # without secrets
    node_type: str | None
    nics: tuple[str, ...]  # one for each GPU or, without GPUs, for each local rank
    rank_environment: Mapping[str, str]  # {nic} in a value stands for the rank's network device
    expects: Mapping[str, list[str]]  # compared with what NCCL reports; see launcher/worker/devices.py
    interface: str | None
    host_suffix: str
    port_range: tuple[int, int]
    submit_timeout: int  # seconds
    query_interval: int | None  # seconds


class Launch(Struct):
    """The section `launch` of a plan; times are in seconds."""

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
    bind: str  # the CPUs that a rank may use; see launcher/binding/masks.py


class Env(Struct):
    """The section `env` of a plan."""

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
    secrets: tuple[str, ...]  # patterns of names of secret variables: the user's and the built-in ones


class Checkpoint(Struct):
    """The section `checkpoint` of a plan; times are in seconds."""

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
    memory: int | None = 0  # steps; None: from the cost of a copy
    peers: bool = True


class Resume(Struct):
    """The section `resume` of a plan."""

    how: str
    max_attempts: int
    lead: int  # seconds
    strict: bool


class Train(Struct):
    """The section `train` of a plan."""

    invariant: bool
    micro_batches: int
    straggler_factor: float
    straggler_time: int  # seconds


class Debug(Struct):
    """The section `debug` of a plan."""

    ranks: tuple[int, ...]  # those that stop at breakpoint()
    post_mortem: bool


class Tracking(Struct):
    """The section `tracking` of a plan."""

    experiment: str
    uri: str | None
    dir: str | None
    project: str | None
    entity: str | None
    mode: str | None


class Workload(Struct):
    """The section `workload` of a plan: the keys that all workloads have, and in `params` all keys of this one."""

    name: str
    entry: str  # module:function
    backend: str
    device: str
    kind: str  # name of its class in launcher.config.schema
    params: Mapping[str, Any]  # all keys, as plain values


class SnapshotCode(Struct):
    """The snapshot of the user's code. Without one, ranks use the code in place."""

    # folder of the copy, which contains the plan's workdir and `path`; None: there is no snapshot
    snapshot: str | None = None
    repository: str | None = None  # folder that was copied
    path: tuple[str, ...] = ()  # folders of the copy that are put on PYTHONPATH


class Archive(Struct):
    """Facts about the file of env.archive."""

    digest: str = ""  # SHA-256 of the file, in hexadecimal
    of: str | None = None  # folder of the environment that was packed; None: not known
    import_time: float = 0.0  # seconds that importing torch took from that folder


def resolved(part: type[S], config: Any, prefix: str = "", /, **own: Any) -> S:
    """Makes a section of a plan, each field from the config's key of that name, or from `own`; raises ConfigError.

    prefix: of the section's keys (`launch.`), for errors that name the key, the value and the fix.
    """
    found = {name: resolved_value(config, name, prefix) for name in part.FIELDS if name not in own}
    return part(**found, **own)


def resolved_value(config: Any, name: str, prefix: str = "") -> Any:
    """Returns the value of a key, converted for the plan; ConfigError names the key, the value and the fix."""
    section: Any = type(config)
    value, form = getattr(config, name), _forms(section).get(name)
    if value is None:
        return None
    return plain(value) if form is None else _FORMS[form](f"{prefix}{name}", value)


def plain(value: Any) -> Any:
    """Converts an enum to its string and a list to a tuple; other values are returned unchanged."""
    if isinstance(value, Enum):
        return value.value
    return tuple(value) if isinstance(value, list) else value


@cache
def _forms(kind: Any) -> dict[str, Form]:
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Form] = {}
    for name, hint in hints.items():
        for each in (hint, *get_args(hint)):  # also for `Time | None`
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


def _steps(key: str, value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal():
        raise ConfigError(f"{key}={value}: it must be a number of steps (0: off) or auto")
    return int(value)


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
    Form.steps: _steps,
    Form.flat: _flat,
}  # fmt: skip
