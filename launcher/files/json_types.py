"""Checks values read as JSON against type hints, and converts structs and dataclasses to JSON and back.

JSON has no tuples and does not distinguish 1 from 1.0, so a list matches a tuple, and a whole number a float.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from launcher import size_limits
from launcher.fast_dataclasses import REQUIRED, Struct

LATEST = 32_503_680_000.0  # seconds since the epoch: the year 3000; an event with a later time is damaged
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list",
          dict: "an object", type(None): "null"}  # fmt: skip


def misfit(value: Any, kind: Any, name: str) -> str | None:
    """Returns a message about the first mismatch between a value of `json.loads` and a type; None: it matches.

    kind: int, float, str, bool, None, Any; an enum, X | Y, list[X], tuple[X, ...], tuple[X, Y], Mapping[str, X], or a
        struct or dataclass of such types. Fields with a default may be missing; unknown ones are a mismatch, unless it
        has a class variable OPEN that is true.
    name: name of the value in the message (`plan.nodes` gives `plan.nodes is not a whole number`).
    """
    return None if _fits(kind)(value) else _misfit(value, kind, name)


def _misfit(value: Any, kind: Any, name: str) -> str | None:
    if kind is Any:
        return None
    if (
        type(value) is int
        and kind in (int, float)
        and not -size_limits.FIELD_INTEGERS < value < size_limits.FIELD_INTEGERS
    ):
        return f"{name} is an integer of more than 64 bits"
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return None if fits else _wrong(name, kind)
    if kind in (int, str, bool, list, dict, type(None)):
        return None if type(value) is kind else _wrong(name, kind)
    if _has_fields(kind):
        return _misfit_of_fields(value, kind, name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if issubclass(kind, str) and type(value) is not str:
            return _wrong(name, str)
        try:
            kind(value)  # an enum with a member UNKNOWN accepts any text
        except ValueError:
            return f"{name} is none of {', '.join(str(each.value) for each in kind)}"
        return None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        found = [misfit(value, each, name) for each in arguments]
        if None in found:
            return None
        of_the_value = {_wrong(name, each) for each in _WORDS}
        return next((words for words in found if words not in of_the_value), found[0])  # prefer a nested value
    if origin in (list, tuple):
        return _misfit_of_items(value, origin, arguments, name)
    if not isinstance(value, dict):
        return _wrong(name, dict)
    each_kind = arguments[1] if len(arguments) == 2 else Any
    return next((words for key, each in value.items() if (words := misfit(each, each_kind, f"{name}.{key}"))), None)


def as_json(value: Any, *, defaults: bool = True) -> Any:
    """Returns a value as JSON types, nested ones too; `defaults`: also fields equal to their default."""
    if isinstance(value, Enum):
        return value.value
    kind: Any = type(value)
    if _has_fields(kind):
        known = _defaults(kind).items()
        kept = {name: getattr(value, name) for name, default in known if defaults or getattr(value, name) != default}
        return {name: as_json(each, defaults=defaults) for name, each in kept.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each, defaults=defaults) for each in value]
    return {k: as_json(each, defaults=defaults) for k, each in value.items()} if isinstance(value, Mapping) else value


def from_json(value: Any, kind: Any) -> Any:
    """Returns a JSON value that `misfit` accepts as a value of type `kind`, without unknown fields."""
    return _reader(kind)(value)


# -- what a type asks for, found out once per type: a run has a million events


@cache
def _fits(kind: Any) -> Callable[[Any], bool]:
    # If it returns False, `_misfit` decides and has the words
    if kind is Any:
        return lambda value: True
    if kind is int:
        return lambda value: type(value) is int and -size_limits.FIELD_INTEGERS < value < size_limits.FIELD_INTEGERS
    if kind is float:
        whole = _fits(int)
        return lambda value: math.isfinite(value) if type(value) is float else whole(value)
    if kind in _WORDS:
        return lambda value: type(value) is kind
    if _has_fields(kind):
        return _fits_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: type(value) is str and value in kind._value2member_map_
    origin, arguments = get_origin(kind), get_args(kind)
    each = [_fits(argument) for argument in arguments if argument is not ...]
    if origin in (Union, types.UnionType):
        return lambda value: any(fits(value) for fits in each)
    if origin is tuple and arguments[-1] is not ...:
        return lambda value: (
            type(value) is list
            and len(value) == len(each)
            and all(fits(item) for fits, item in zip(each, value, strict=True))
        )
    if origin in (list, tuple):
        return lambda value: type(value) is list and all(map(each[0], value))
    of_values = each[1] if len(each) == 2 else _fits(Any)
    return lambda value: type(value) is dict and all(map(of_values, value.values()))


def _fits_fields(kind: Any) -> Callable[[Any], bool]:
    hints, needed = _fields_of(kind)
    fields = {name: _fits(hint) for name, hint in hints.items()}
    unknown = getattr(kind, "OPEN", False)

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for key, each in value.items():
            check = fields.get(key)
            if not (unknown if check is None else check(each)):
                return False
        return all(key in value for key in needed)

    return fits


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    if kind in _WORDS:
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


def _misfit_of_items(value: Any, origin: Any, kinds: tuple[Any, ...], name: str) -> str | None:
    if not isinstance(value, (list, tuple)):
        return _wrong(name, list)
    if origin is tuple and kinds[-1] is not ...:
        if len(value) != len(kinds):
            return f"{name} has {len(value)} items instead of {len(kinds)}"
    else:
        kinds = (kinds[0],) * len(value)
    pairs = enumerate(zip(value, kinds, strict=True))
    return next((words for place, (each, kind) in pairs if (words := misfit(each, kind, f"{name}[{place}]"))), None)


def _misfit_of_fields(value: Any, kind: Any, name: str) -> str | None:
    if not isinstance(value, dict):
        return _wrong(name, dict)
    hints, needed = _fields_of(kind)
    dotted = f"{name}." if name else ""
    for key in () if getattr(kind, "OPEN", False) else value:
        if key not in hints:
            return f"{dotted}{key} is not known here"
    for key in needed:
        if key not in value:
            return f"{dotted}{key} is missing"
    for key, each in value.items():
        if key in hints and (words := misfit(each, hints[key], f"{dotted}{key}")):
            return words
    return None


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


def _wrong(name: str, kind: Any) -> str:
    return f"{name} is not {_WORDS[kind]}"
