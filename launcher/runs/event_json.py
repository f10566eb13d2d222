"""Events as JSON has them: what is written of one, what must be in a line, and the event in a line that fits. Pure."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """In `typing` since Python 3.11; only type checkers need it."""
        return lambda kind: kind


TYPES: dict[str, type[Event]] = {}  # the class of each kind


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True, repr=False, eq=False)
class Event:
    """One event. A subclass names its kind, in `event`, and is thereby declared, and a dataclass with keywords only.

    The dataclass gets its `__init__` alone: the other methods are here once, since making them for each of some thirty
    kinds would take every command 10 ms.

    Attributes:
        time: seconds since the epoch; of one that is yet to be written, 0.
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


def of(entry: Mapping[str, Any]) -> Event:
    """The event in an entry of a file that `event_file.read` has checked; KeyError: its kind has no class."""
    kind: Any = TYPES[entry["event"]]
    hints = _hints(kind)
    event: Event = kind(**{name: _typed(hints[name], value) for name, value in entry.items() if name in hints})
    return event


def known(entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """The events of the kinds that have a class."""
    return (of(entry) for entry in entries if entry["event"] in TYPES)


def values(event: Event) -> dict[str, Any]:
    """What is written of an event: all fields but the time that are not as if they were missing."""
    return {
        each.name: _plain(value)
        for each in fields(event)
        if each.name != "time" and ((value := getattr(event, each.name)) != each.default or each.default is MISSING)
    }


@cache
def checks(name: str) -> tuple[tuple[str, Any, bool], ...]:
    """Of a kind, each field but its time: its name, what JSON must have there, and whether it must be there."""
    if name not in TYPES:  # of a newer version
        return ()
    kind: Any = TYPES[name]
    hints = _hints(kind)
    return tuple(
        (each.name, _of_json(hints[each.name]), each.default is MISSING) for each in fields(kind) if each.name != "time"
    )


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of a kind's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _of_json(kind: Any) -> Any:
    """The type of a field as JSON has it: codes are texts."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_of_json, arguments))]  # noqa: UP007  made of parts
    if origin is tuple:
        return list[_of_json(arguments[0])]  # type: ignore[misc]
    return kind


def _typed(kind: Any, value: Any) -> Any:
    """A value of JSON that fits as the field's type has it."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if is_dataclass(kind):
        hints, made = _hints(cast(Any, kind)), cast(Any, kind)
        return made(**{name: _typed(hints[name], each) for name, each in value.items() if name in hints})
    if get_origin(kind) is tuple:
        return tuple(_typed(get_args(kind)[0], each) for each in value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {
            each.name: _plain(inner) for each in fields(value) if (inner := getattr(value, each.name)) != each.default
        }
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
