"""How heavy the launcher is: a change that needs more raises a bound and says so; one that needs less lowers it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# The goals are 46,000 lines and 210 modules of launcher/, 5,500 lines and 24 modules of workloads/, 12 % docstrings.
MOST = {"launcher": (60812, 284), "workloads": (6_330, 27)}  # lines, modules
MOST_DOCSTRINGS = 0.12  # share of the lines of launcher/
LONGEST = 650  # lines of a module that answers one question


def modules(folder: str) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


def docstring_lines(source: str) -> int:
    found = 0
    for node in ast.walk(ast.parse(source)):
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
    share = sum(map(docstring_lines, texts.values())) / sum(text.count("\n") for text in texts.values())
    assert share <= MOST_DOCSTRINGS, f"{share:.1%} of the lines are docstrings"


def test_no_module_answers_several_questions() -> None:
    long = {name: lines for name, text in modules("launcher").items() if (lines := text.count("\n")) > LONGEST}
    assert long == {}
