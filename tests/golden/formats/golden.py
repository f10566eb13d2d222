"""Golden files of the JSON formats: compared as text, and rewritten with GOLDEN_UPDATE=1.

written/      records, journals and events, as the launcher writes them
runs/         run directories, each as one file
answers/      recorded output of schedulers' commands: a command with wildcards, and below it its output
json_output/  what commands print with --json about these runs, with these answers
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def check(name: str, text: str) -> None:
    """Compares a text with the golden file of this name; with GOLDEN_UPDATE=1 the file is written instead."""
    path = HERE / name
    if os.environ.get("GOLDEN_UPDATE") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    frozen = path.read_text() if path.exists() else ""
    if text == frozen:
        return
    lines = difflib.unified_diff(
        frozen.splitlines(keepends=True), text.splitlines(keepends=True), f"tests/golden/formats/{name}", "now"
    )
    pytest.fail(
        f"{name} is not what it was; if that is meant, GOLDEN_UPDATE=1 writes it anew\n" + "".join(lines), pytrace=False
    )


def sections(name: str, mark: str) -> list[tuple[str, str]]:
    """The parts of a file: each begins with a line `MARK title`; what stands before the first is a comment."""
    found: list[tuple[str, list[str]]] = []
    for line in (HERE / name).read_text().splitlines(keepends=True):
        if line.startswith(f"{mark} "):
            found.append((line[len(mark) + 1 :].rstrip("\n"), []))
        elif found:
            found[-1][1].append(line)
    return [(title, "".join(lines)) for title, lines in found]
