"""What our modules import: never in a circle, and at the top of the file unless a comment says why not."""

from __future__ import annotations

import ast
import graphlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import launcher
from tests.launch import ROOT
from tests.unit.repository.trees import tree

PACKAGES = ("launcher", "workloads", "hydra_plugins", "benchmarks")


@dataclass(frozen=True)
class Import:
    """One name that a module imports: of which module, in which line, and whether a function does it."""

    of: str
    line: int
    in_function: bool


@cache
def modules() -> dict[str, Path]:
    """Our modules by their names."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """What a module imports when it runs, without what it does for type checkers alone."""
    return tuple(_imports(tree(path), in_function=False))


def imports(source: str) -> list[Import]:
    return list(_imports(ast.parse(source), in_function=False))


def _imports(node: ast.AST, *, in_function: bool) -> Iterator[Import]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        for each in node.names:
            yield Import(each.name, node.lineno, in_function)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "modules are named from the top"
        for each in node.names:
            whole = f"{node.module}.{each.name}"
            yield Import(whole if whole in modules() else node.module, node.lineno, in_function)
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):  # an expression has no statement inside
        for child in getattr(node, name, ()):
            yield from _imports(child, in_function=in_function or is_function)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("text", ["import launcher.errors", "def f():\n    from launcher import errors"])
def test_an_import_is_seen_wherever_it_stands(text: str) -> None:
    assert [each.of for each in imports(text)] == ["launcher.errors"]
    assert circle({"launcher.errors": {"a"}, "a": {each.of for each in imports(text)}})


def test_an_import_for_type_checkers_is_none() -> None:
    assert not imports("if TYPE_CHECKING:\n    from launcher import errors")


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: {each.of for each in imports_of(path) if each.of in modules()} for name, path in modules().items()}
    assert circle(graph) == [], "move what both need to a module of its own"


# -- imports inside functions

# Each is there because of a start-up time that `python -m benchmarks.login_node` shows. More of them: say in the change
# what it measured.
MOST_IN_FUNCTIONS = 199  # names


def test_imports_stand_at_the_top() -> None:
    product = [path for name, path in modules().items() if name.split(".")[0] != "benchmarks"]
    assert sum(each.in_function for path in product for each in imports_of(path)) <= MOST_IN_FUNCTIONS


def test_paths_of_the_public_functions_may_be_text() -> None:
    things = {name: getattr(launcher, name) for name in launcher.__all__}
    takes = {
        f"{name}({parameter.name})": str(parameter.annotation)
        for name, thing in things.items()
        if not (isinstance(thing, type) and issubclass(thing, Exception))
        for parameter in inspect.signature(thing).parameters.values()
    }
    assert [each for each, kind in takes.items() if re.search(r"\bPath\b", kind) and "str" not in kind] == []
    assert {"Checkpointer(folder)", "Resumable(folder)", "find(runs_dir)"} <= {
        each for each, kind in takes.items() if "str | os.PathLike" in kind
    }
