"""Classes like frozen dataclasses, which cost nothing until they are used.

`dataclasses` compiles methods for each class, and imports `inspect`: half of the start of each command, 35 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        """In `typing` since Python 3.11; only type checkers need it."""
        return lambda kind: kind


S = TypeVar("S", bound="Struct")
REQUIRED = object()  # stands for the default of a field that has none


class _DataclassFields:
    # As far as `dataclasses.fields`, `replace` and `asdict` use them: without types and defaults

    def __get__(self, _: object, kind: Any) -> Any:
        return _dataclass_fields(kind)


@cache
def _dataclass_fields(kind: Any) -> Any:
    from dataclasses import make_dataclass

    return vars(make_dataclass(kind.__name__, kind.FIELDS))["__dataclass_fields__"]


@dataclass_transform(frozen_default=True)
class Struct:
    """Base class: annotations are fields, a value is their default. Nothing but type checkers keeps them constant."""

    FIELDS: ClassVar[Mapping[str, Any]] = {}  # default of each field, or REQUIRED
    _required: ClassVar[frozenset[str]] = frozenset()
    __dataclass_fields__: ClassVar[Any] = _DataclassFields()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = [name for name, hint in cls.__annotations__.items() if not hint.startswith("ClassVar")]
        cls.FIELDS = {**cls.FIELDS, **{name: vars(cls).get(name, REQUIRED) for name in names}}
        cls._required = frozenset(name for name, default in cls.FIELDS.items() if default is REQUIRED)

    def __init__(self, *positional: Any, **named: Any) -> None:
        if positional:
            named.update(zip(self.FIELDS, positional, strict=False))
        values, most = {**self.FIELDS, **named}, len(self.FIELDS)
        if len(values) > most or len(positional) > most or not self._required <= named.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self.FIELDS)}: {positional}, {named}")
        self.__dict__ = values

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Open(Struct):
    """A struct that is read from JSON although it has unknown fields, which another version has written."""

    OPEN: ClassVar[bool] = True


def replace(struct: S, **changes: Any) -> S:
    """Returns a copy with other values of some fields, as `dataclasses.replace` does."""
    return type(struct)(**{**vars(struct), **changes})
