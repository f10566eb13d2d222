"""Converts events between dataclasses and JSON, and lists the fields that a line of each kind must have. Pure."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """In `typing` since Python 3.11; only type checkers need it."""
        return lambda kind: kind


TYPES: dict[str, type[Event]] = {}  # by kind
E_ = TypeVar("E_", bound="Event")


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True, repr=False, eq=False)
class Event:
    """Base class of events. A subclass names its kind in `event`; it becomes a dataclass, and is registered in TYPES.

    The dataclass gets only its `__init__`: the other methods are shared, since making them for each of some thirty
    kinds would slow every command by 10 ms.

    Attributes:
        time: seconds since the epoch; 0 before the event is written.
    """

    event: ClassVar[str] = ""
    time: float = 0.0

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True, repr=False, eq=False)(cls)
        TYPES[cls.event] = cls

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def from_entry(entry: Mapping[str, Any]) -> Event:
    """Returns the event of a dict that `event_file.read` has checked; KeyError: its kind has no class."""
    kind: Any = TYPES[entry["event"]]
    hints = _hints(kind)
    event: Event = kind(**{name: from_json(hints[name], value) for name, value in entry.items() if name in hints})
    return event


def known(entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Yields the events whose kind has a class."""
    return (from_entry(entry) for entry in entries if entry["event"] in TYPES)


def from_values(kind: type[E_], values: Mapping[str, Any]) -> E_:
    """Returns the event of what `values` has made of it."""
    event = from_entry({**values, "event": kind.event})
    assert isinstance(event, kind)
    return event


def values(event: Event) -> dict[str, Any]:
    """Returns the fields of an event as JSON types, without the time and without fields at their defaults."""
    return {
        each.name: _to_json(value)
        for each in fields(event)
        if each.name != "time" and ((value := getattr(event, each.name)) != each.default or each.default is MISSING)
    }


@cache
def field_checks(name: str) -> tuple[tuple[str, Any, bool], ...]:
    """Returns the fields of a kind, without the time: name, JSON type, and whether the field is required."""
    if name not in TYPES:  # of a newer version
        return ()
    kind: Any = TYPES[name]
    hints = _hints(kind)
    return tuple(
        (each.name, _json_type(hints[each.name]), each.default is MISSING)
        for each in fields(kind)
        if each.name != "time"
    )


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """Returns the types of a dataclass's fields by their names."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _json_type(kind: Any) -> Any:
    """Returns a field's type in JSON: codes are strings, tuples are lists."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_json_type, arguments))]  # noqa: UP007  built at run time
    if origin is tuple:
        return list[_json_type(arguments[0])]  # type: ignore[misc]
    return kind


def from_json(kind: Any, value: Any) -> Any:
    """Converts a valid JSON value to the type of a field: a dataclass, an enum, a tuple of such, or a JSON type."""
    if get_origin(kind) in (Union, types.UnionType) and value is not None:
        kind = get_args(kind)[0]  # X | None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if is_dataclass(kind):
        hints, made = _hints(cast(Any, kind)), cast(Any, kind)
        return made(**{name: from_json(hints[name], each) for name, each in value.items() if name in hints})
    if get_origin(kind) is tuple:
        return tuple(from_json(get_args(kind)[0], each) for each in value)
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {
            each.name: _to_json(inner) for each in fields(value) if (inner := getattr(value, each.name)) != each.default
        }
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
