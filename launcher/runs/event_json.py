"""The base class of events, and their conversion between dataclasses and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from launcher.files.json_types import as_json, from_json

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """In `typing` since Python 3.11; only type checkers need it."""
        return lambda kind: kind


TYPES: dict[str, type[Event]] = {}  # class of each kind of event
E_ = TypeVar("E_", bound="Event")


class Open:
    """Base class of events and of dataclasses inside events: unknown fields, written by a newer version, are valid."""

    OPEN: ClassVar[bool] = True


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True, repr=False, eq=False)
class Event(Open):
    """Base class of events. Each subclass sets its kind in `event`, becomes a dataclass and is registered in TYPES.

    Subclasses share this class's `__eq__`, `__hash__` and `__repr__`, because generating these methods for each of
    some thirty kinds would slow every command by 10 ms.

    Attributes:
        event: kind of the event (`started`), by which it is recognised in a file.
        time: when the event was written, in seconds since the epoch; 0: it has not been written yet.
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
    """Converts a dict from `event_file.read` to an event.

    Raises:
        KeyError: this version has no class for the kind of the event.
    """
    event: Event = from_json(entry, TYPES[entry["event"]])
    return event


def known(entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Converts dicts from `event_file.read` to events, and yields those of kinds that this version knows."""
    return (from_entry(entry) for entry in entries if entry["event"] in TYPES)


def from_values(kind: type[E_], values: Mapping[str, Any]) -> E_:
    """Returns an event of this kind from its fields as JSON types; the inverse of `values`."""
    event = from_entry({**values, "event": kind.event})
    assert isinstance(event, kind)
    return event


def values(event: Event) -> dict[str, Any]:
    """Returns the fields of an event as JSON types, without the time and without fields that have their default."""
    return {
        each.name: as_json(value, defaults=False)
        for each in fields(event)
        if each.name != "time" and ((value := getattr(event, each.name)) != each.default or each.default is MISSING)
    }
