"""The syntax trees of our modules: what looks at one of them leaves it as it is, so all tests have the same ones."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop)


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # none of it is garbage, and looking for that takes half as long again
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """What `ast.walk` yields of a module, but for the leaves, which are most of it."""
    found: list[ast.AST] = [tree(path)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, ast.AST) and not isinstance(each, LEAVES):
                    found.append(each)
    return found
