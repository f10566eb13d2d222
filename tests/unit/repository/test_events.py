"""Whatever is written as an event, or looked for as one, is a kind that `launcher.runs.events` declares."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from launcher.paths import PACKAGE
from launcher.runs import events
from launcher.runs.events import TYPES, Event
from tests.unit.repository.trees import nodes

ROOT = PACKAGE.parent


def names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Texts that are compared with the name of an event (`entry["event"] == "x"`), or written as one."""
    for node in nodes:
        if isinstance(node, ast.Compare) and any(map(_is_name, [node.left, *node.comparators])):
            for each in (part for side in [node.left, *node.comparators] for part in ast.walk(side)):
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value != "event":
                    yield each.lineno, each.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event" and isinstance(value, ast.Constant):
                    yield value.lineno, str(value.value)


def _is_name(node: ast.AST) -> bool:
    """`entry["event"]`, or `entry.get("event")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        inside: ast.AST | None = node.args[0] if node.args else None
    else:
        inside = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(inside, ast.Constant) and inside.value == "event"


def test_an_event_is_called_by_its_class() -> None:
    found = {str(path): list(names(nodes(path))) for path in PACKAGE.rglob("*.py")}
    assert {path: places for path, places in found.items() if places} == {}


@pytest.mark.parametrize("text", ['x["event"] == "nap"', 'x.get("event") in ("nap",)', '{"event": "nap", "time": 1}'])
def test_a_name_in_a_text_is_found(text: str) -> None:
    assert [name for _, name in names(ast.walk(ast.parse(text)))] == ["nap"]


def test_each_kind_has_a_class_of_its_own_here() -> None:
    kinds = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)]
    assert {each.event: each for each in kinds if each is not Event} == dict(TYPES)
