"""The syntax trees of our modules: what looks at one of them leaves it as it is, so all tests have the same ones."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
