"""Which values of JSON fit a type, and what is said of those that do not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

import pytest

from launcher import io_bounds
from launcher.fast_dataclasses import Struct
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


MOST = io_bounds.FIELD_INTEGERS


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int, [0, MOST - 1, 1 - MOST]), (float, [0, 0.5]), (str, [""]), (bool, [True]), (list, [[], [None]]),
        (dict, [{}, {"a": None}]), (type(None), [None]), (Any, [None, 10**400, [{}]]), (Colour, ["red"]),
        (Open, ["blue", "pink"]), (Item, [{"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": 2}]), (int | None, [1, None]),
        (str | int, ["x", 1]), (Item | Whole, [{"a": 1}, {"items": [{"a": 1}]}]), (list[int], [[], [1, 2]]),
        (tuple[float, ...], [[], [1, 0.5]]), (tuple[int, str], [[1, "x"]]), (tuple[Item, ...], [[{"a": 1}]]),
        (Mapping[str, int], [{}, {"a": 1}]), (Mapping[str, Any], [{"a": []}]), (dict[str, Item], [{"x": {"a": 1}}]),
        (Mapping[str, tuple[Colour, ...]], [{}, {"x": ["red"]}]), (Whole, [{}, {"colours": {"x": "red"}}]),
    ],
)  # fmt: skip
def test_what_fits_a_type(kind: Any, values: list[Any]) -> None:
    assert [misfit(value, kind, "it") for value in values] == [None] * len(values)


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, True, "it is not a whole number"), (int, 0.5, "it is not a whole number"),
        (int, MOST, "it is an integer of more than 64 bits"), (float, -MOST, "it is an integer of more than 64 bits"),
        (float, True, "it is not a number"), (float, float("nan"), "it is not a number"),
        (float, float("inf"), "it is not a number"), (str, 1, "it is not text"), (bool, 1, "it is not true or false"),
        (list, {}, "it is not a list"), (dict, [], "it is not an object"), (type(None), 0, "it is not null"),
        (Colour, "pink", "it is none of red"), (Colour, 1, "it is not text"), (Open, None, "it is not text"),
        (Item, [], "it is not an object"), (Item, {"b": 1}, "it.a is missing"), (Item, {"a": "x"},
        "it.a is not a whole number"), (Item, {"b": 1, "c": 2}, "it.c is not known here"),
        (int | None, "x", "it is not a whole number"), (str | int, MOST, "it is an integer of more than 64 bits"),
        (Item | None, {"a": "x"}, "it.a is not a whole number"), (list[int], {}, "it is not a list"),
        (list[int], [1, None], "it[1] is not a whole number"), (tuple[int, str], [1], "it has 1 items instead of 2"),
        (tuple[int, str], ["x", "y"], "it[0] is not a whole number"),
        (tuple[Item, ...], [{"a": 1}, {"a": 2.5}], "it[1].a is not a whole number"),
        (Mapping[str, int], [], "it is not an object"), (Mapping[str, int], {"a": 1, "b": "x"},
        "it.b is not a whole number"), (Whole, {"colours": {"x": "pink"}}, "it.colours.x is none of red"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_by_its_name(kind: Any, value: Any, words: str) -> None:
    assert misfit(value, kind, "it") == words
    assert misfit(value, kind, "") == words.removeprefix("it").removeprefix(".")


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
