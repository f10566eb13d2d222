"""How heavy the launcher is: a change that needs more raises a bound and says so; one that needs less lowers it."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.repository.trees import nodes, tree

ROOT = Path(__file__).parents[3]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# The goals are 46,000 lines and 210 modules of launcher/, 5,500 lines and 24 modules of workloads/, 12 % docstrings.
MOST = {"launcher": (56_172, 210), "workloads": (5_425, 19)}  # lines, modules
MOST_DOCSTRINGS = 0.12  # share of the lines of launcher/
LONGEST = 650  # lines of a module that answers one question


def modules(folder: str) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


def docstring_lines(path: Path) -> int:
    found = 0
    for node in nodes(path):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            found += (text.end_lineno or text.lineno) - text.lineno + 1
    return found


def test_lines_and_modules() -> None:
    for folder, (lines, files) in MOST.items():
        texts = modules(folder)
        assert sum(text.count("\n") for text in texts.values()) <= lines, folder
        assert len(texts) <= files, folder


def test_docstrings() -> None:
    texts = modules("launcher")
    share = sum(docstring_lines(ROOT / name) for name in texts) / sum(text.count("\n") for text in texts.values())
    assert share <= MOST_DOCSTRINGS, f"{share:.1%} of the lines are docstrings"


def test_no_module_answers_several_questions() -> None:
    long = {name: lines for name, text in modules("launcher").items() if (lines := text.count("\n")) > LONGEST}
    assert long == {}


# Sections of the config and of the plan; what schedulers, and callbacks of trainers, have under one name; `Run` and
# `Env`, which users import.
SIBLINGS = {
    "Checkpoint", "Cluster", "Debug", "Env", "GpuDirective", "Launch", "LauncherCallback", "Parameters",
    "Request", "Resume", "Run", "Sweep", "Tracking", "Train", "Workload",
}  # fmt: skip


def test_a_name_of_a_class_stands_for_one_thing() -> None:
    found = [
        node.name
        for name in modules("launcher")
        for node in tree(ROOT / name).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in found if found.count(name) > 1} == SIBLINGS
