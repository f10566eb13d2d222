"""Nothing outside of a scheduler's folder asks which scheduler it is: what one can do is a type."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from launcher.paths import PACKAGE, resource
from launcher.schedulers import registry
from tests.unit.repository.trees import nodes

SCHEDULERS = PACKAGE / "schedulers"
FOLDERS = sorted({place.scheduler.split(".")[2] for place in registry.OURS.values()})
NAMES = {*registry.OURS}


def outside() -> list[Path]:
    """Our modules but for those in a scheduler's folder."""
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(
            path.is_relative_to(SCHEDULERS / folder) or path == SCHEDULERS / f"{folder}.py" for folder in FOLDERS
        )
    ]


def asked(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The places of a module that ask for a scheduler's name, or import a scheduler: what, with the line."""
    for node in nodes:
        found: list[str] = []
        if isinstance(node, ast.Compare):
            found = [each for side in (node.left, *node.comparators) for each in _names(side)]
        elif isinstance(node, ast.MatchValue):
            found = _names(node.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            found = [each for key in node.value.keys if key is not None for each in _names(key)]
        elif isinstance(node, ast.Import):
            found = [each.name for each in node.names if _is_scheduler(each.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{each.name}" for each in node.names if _is_scheduler(f"{node.module}.{each.name}")]
        for each in found:
            yield f"line {node.lineno}: {each}"  # type: ignore[attr-defined]


def _names(node: ast.expr) -> list[str]:
    """The schedulers' names in one side of a comparison, or in a tuple or set there."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [each for element in node.elts for each in _names(element)]
    return [node.value] if isinstance(node, ast.Constant) and node.value in NAMES else []


def _is_scheduler(module: str) -> bool:
    return any(f"{module}.".startswith(f"launcher.schedulers.{folder}.") for folder in FOLDERS)


@pytest.mark.parametrize(
    "text",
    [
        'if plan.scheduler == "slurm": pass', 'queued = name not in ("local", "allocation")', 'a = "pbs" != b',
        'match name:\n    case "pbs": pass', 'cls = {"slurm": 1, "pbs": 2}[name]',
        "from launcher.schedulers.pbs import commands", "from launcher.schedulers import slurm",
        "def f():\n    import launcher.schedulers.slurm.executor",
        "from launcher.schedulers.slurm.client import Slurm",
    ],
)  # fmt: skip
def test_who_asks_is_seen(text: str) -> None:
    assert list(asked(ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text", ['name = "slurm"', "from launcher.schedulers import registry", 'if kind == "slurmctld": pass']
)
def test_who_does_not_ask_is_not(text: str) -> None:
    assert list(asked(ast.walk(ast.parse(text)))) == []


def test_no_module_asks_which_scheduler_it_is() -> None:
    found = [f"{path}, {place}" for path in outside() for place in asked(nodes(path))]
    assert found == [], "make it a method or a class of launcher/schedulers/base.py"


@pytest.mark.parametrize("path", sorted(resource("templates").rglob("*.j2")), ids=lambda path: path.name)
def test_no_template_asks_which_scheduler_it_is(path: Path) -> None:
    assert "plan.scheduler" not in path.read_text(), "make it a field of JobVariables"
