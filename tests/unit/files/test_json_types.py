"""Which values of JSON fit a type, said once by a fast check, and once by what has the words for those that do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import Any, ClassVar

import pytest

from launcher import size_limits
from launcher.fast_dataclasses import Struct
from launcher.files import json_types
from launcher.files.json_types import as_json, from_json, misfit


class Colour(str, Enum):
    RED = "red"


class Open(str, Enum):
    BLUE = "blue"
    UNKNOWN = "?"

    @classmethod
    def _missing_(cls, value: object) -> Open:
        return cls.UNKNOWN


class Item(Struct):
    a: int
    b: float | None = None


class Whole(Struct):
    OPEN: ClassVar[bool] = False
    items: tuple[Item, ...] = ()
    colours: Mapping[str, Colour] = {}


KINDS: list[Any] = [
    int, float, str, bool, list, dict, type(None), Any, Colour, Open, Item, Whole, int | None, str | int, Item | Whole,
    list[int], tuple[float, ...], tuple[int, str], tuple[Item, ...], Mapping[str, int], Mapping[str, Any],
    dict[str, Item], Mapping[str, tuple[Colour, ...]],
]  # fmt: skip
MOST = size_limits.FIELD_INTEGERS
VALUES: list[Any] = [
    None, True, 0, MOST - 1, MOST, -MOST, 10**400, 0.5, float("nan"), float("inf"), "", "red", "blue", "pink", [], [1],
    [0.5, 1], [1, "x"], [1, "x", 2], [None], {}, {"a": 1}, {"a": 1, "b": None}, {"a": 1, "c": 2}, {"a": "x"}, {"b": 1},
    {"x": ["red"]}, {"x": {"a": 1}}, [{"a": 1}, {"a": 2.5}], [{"a": 1}], {"items": [{"a": 1}]},
    {"colours": {"x": "red"}},
    {"colours": {"x": "pink"}}, {"items": [], "other": 1},
]  # fmt: skip


def test_the_fast_check_and_the_words_agree() -> None:
    fit = 0
    for kind, value in product(KINDS, VALUES):
        words = json_types._misfit(value, kind, "it")
        assert misfit(value, kind, "it") == words, (kind, value)
        assert not json_types._fits(kind)(value) or words is None, (kind, value)
        fit += words is None
    assert len(KINDS) < fit < len(KINDS) * len(VALUES) / 2, "there are enough of both"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Whole, Whole((Item(1), Item(2, 0.5)), {"x": Colour.RED})), (Item | None, None), (Item | None, Item(3)),
        (Open, Open.UNKNOWN), (tuple[int, str], (1, "x")), (dict[str, Item], {"x": Item(1)}), (str | int, 5),
    ],
)  # fmt: skip
def test_what_is_written_is_read(kind: Any, value: object) -> None:
    read = from_json(json.loads(json.dumps(as_json(value))), kind)
    assert (read, type(read)) == (value, type(value))
