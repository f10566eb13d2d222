"""Checks values read as JSON against type hints, and converts structs and dataclasses to JSON and back.

JSON has no tuples and does not distinguish 1 from 1.0, so a list matches a tuple, and a whole number a float.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from launcher import io_bounds
from launcher.fast_dataclasses import REQUIRED, Struct

T = TypeVar("T")
LATEST = 32_503_680_000.0  # seconds since the epoch: the year 3000; an event with a later time is damaged
_NOT = {
    int: " is not a whole number", float: " is not a number", str: " is not text", bool: " is not true or false",
    list: " is not a list", dict: " is not an object", type(None): " is not null",
}  # fmt: skip

Check = Callable[[Any], "str | None"]  # returns what is wrong with a value, to be put behind its name


def misfit(value: Any, kind: Any, name: str) -> str | None:
    """Returns a message about the first mismatch between a value of `json.loads` and a type; None: it matches.

    kind: int, float, str, bool, None, Any; an enum, X | Y, list[X], tuple[X, ...], tuple[X, Y], Mapping[str, X], or a
        struct or dataclass of such types. Fields with a default may be missing; unknown ones are a mismatch, unless it
        has a class variable OPEN that is true.
    name: name of the value in the message (`plan.nodes` gives `plan.nodes is not a whole number`).
    """
    wrong = _check(kind)(value)
    return None if wrong is None else f"{name}{wrong}" if name else wrong.removeprefix(".")


def as_json(value: Any, *, defaults: bool = True) -> Any:
    """Returns a value as JSON types, nested ones too; `defaults`: also fields equal to their default."""
    kind: Any = type(value)
    if kind in _NOT and kind not in (list, dict):  # most values, and the plans of a sweep have a million
        return value
    if isinstance(value, Enum):
        return value.value
    if _has_fields(kind):
        known = _defaults(kind).items()
        kept = {name: getattr(value, name) for name, default in known if defaults or getattr(value, name) != default}
        return {name: as_json(each, defaults=defaults) for name, each in kept.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each, defaults=defaults) for each in value]
    return {k: as_json(each, defaults=defaults) for k, each in value.items()} if isinstance(value, Mapping) else value


def from_json(value: Any, kind: type[T]) -> T:
    """Returns a JSON value that `misfit` accepts as a value of type `kind`, without unknown fields."""
    found: T = _reader(kind)(value)  # type: ignore[arg-type]  # classes can be hashed
    return found


# -- what a type asks for, found out once per type: a run has a million events


@cache
def _check(kind: Any) -> Check:
    if kind is Any:
        return lambda value: None
    if kind in (int, float):
        return _check_number(kind)
    if kind in _NOT:
        return lambda value: None if type(value) is kind else _NOT[kind]
    if _has_fields(kind):
        return _check_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _check_enum(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _check_union([_check(each) for each in arguments])
    if origin in (list, tuple):
        several = origin is tuple and arguments[-1] is not ...
        return _check_items([_check(each) for each in arguments] if several else _check(arguments[0]))
    of_values = _check(arguments[1]) if len(arguments) == 2 else _check(Any)

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return _NOT[dict]
        return next((f".{key}{wrong}" for key, each in value.items() if (wrong := of_values(each))), None)

    return check


def _check_number(kind: type) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is int:
            fits = -io_bounds.FIELD_INTEGERS < value < io_bounds.FIELD_INTEGERS
            return None if fits else " is an integer of more than 64 bits"
        return None if kind is float and isinstance(value, float) and math.isfinite(value) else _NOT[kind]

    return check


def _check_enum(kind: type[Enum]) -> Check:
    def check(value: Any) -> str | None:
        if issubclass(kind, str) and type(value) is not str:
            return _NOT[str]
        try:
            kind(value)  # an enum with a member UNKNOWN accepts any text
        except ValueError:
            return f" is none of {', '.join(str(each.value) for each in kind)}"
        return None

    return check


def _check_union(checks: Sequence[Check]) -> Check:
    def check(value: Any) -> str | None:
        found = []
        for each in checks:
            if (wrong := each(value)) is None:
                return None
            found.append(wrong)
        return next((wrong for wrong in found if wrong not in _NOT.values()), found[0])  # prefer a nested value

    return check


def _check_items(checks: Sequence[Check] | Check) -> Check:
    # checks: one of each item, or the one of all
    def check(value: Any) -> str | None:
        if not isinstance(value, (list, tuple)):
            return _NOT[list]
        if callable(checks):
            found = map(checks, value)
        elif len(value) == len(checks):
            found = map(lambda check, item: check(item), checks, value)
        else:
            return f" has {len(value)} items instead of {len(checks)}"
        return next((f"[{place}]{wrong}" for place, wrong in enumerate(found) if wrong), None)

    return check


def _check_fields(kind: Any) -> Check:
    hints, needed = _fields_of(kind)
    fields = {name: _check(hint) for name, hint in hints.items()}
    unknown = getattr(kind, "OPEN", False)

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return _NOT[dict]
        if not unknown and not value.keys() <= fields.keys():
            return f".{next(key for key in value if key not in fields)} is not known here"
        for key in needed:
            if key not in value:
                return f".{key} is missing"
        for key, each in value.items():
            if key in fields and (wrong := fields[key](each)):
                return f".{key}{wrong}"
        return None

    return check


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    if kind in _NOT:
        return _as_it_is
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [each for each in arguments if each is not types.NoneType]
        if len(kinds) == 1:
            read = _reader(kinds[0])
            return lambda value: None if value is None else read(value)
        return lambda value: next(_reader(each)(value) for each in arguments if misfit(value, each, "") is None)
    if _has_fields(kind):
        readers = {name: _reader(hint) for name, hint in _fields_of(kind)[0].items()}
        return lambda value: kind(**{name: readers[name](each) for name, each in value.items() if name in readers})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin is tuple:
        if arguments[-1] is ...:
            of_items = _reader(arguments[0])
            return lambda value: tuple(map(of_items, value))
        several = [_reader(each) for each in arguments]
        return lambda value: tuple(read(each) for read, each in zip(several, value, strict=True))
    if len(arguments) != 2 or arguments[1] is Any:
        return _as_it_is
    of_values = _reader(arguments[1])
    return lambda value: {key: of_values(each) for key, each in value.items()} if isinstance(value, dict) else value


def _as_it_is(value: Any) -> Any:
    return value


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, Struct) or hasattr(kind, "__dataclass_fields__"))


@cache
def _fields_of(kind: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    hints = get_type_hints(kind)
    if issubclass(kind, Struct):
        needed = tuple(name for name, default in kind.FIELDS.items() if default is REQUIRED)
        return {name: hints[name] for name in kind.FIELDS}, needed
    from dataclasses import MISSING, fields

    taken = [each for each in fields(kind) if each.init]
    needed = tuple(each.name for each in taken if each.default is MISSING and each.default_factory is MISSING)
    return {each.name: hints[each.name] for each in taken}, needed


@cache
def _defaults(kind: Any) -> Any:
    if issubclass(kind, Struct):
        return kind.FIELDS
    from dataclasses import fields

    return {each.name: each.default for each in fields(kind)}
