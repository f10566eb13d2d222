"""The docstring of each larger package names its modules, each once: by these lists the file for a change is found."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCHEDULERS = ROOT / "launcher" / "schedulers"
FOLDERS = ("slurm", "pbs", "sge")
FEW = 2  # modules of which a package's paragraph tells enough


def modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def listed(folder: Path) -> list[str]:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return re.findall(r"^- `([\w/]+)`: \S", text, re.MULTILINE)


LARGE = sorted(
    path.parent
    for top in ("launcher", "workloads", "benchmarks")
    for path in (ROOT / top).rglob("__init__.py")
    if len(modules(path.parent)) > FEW and path.parent not in [SCHEDULERS / name for name in FOLDERS]
)


@pytest.mark.parametrize("folder", LARGE, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_package_lists_its_modules(folder: Path) -> None:
    assert sorted(name for name in listed(folder) if "/" not in name) == modules(folder)


def test_the_modules_of_the_schedulers_share_one_list() -> None:
    """`NAME/x` is in at least two folders of schedulers, `pbs/x` in that of PBS alone."""
    number = Counter(module for name in FOLDERS for module in modules(SCHEDULERS / name))
    assert sorted(name for name in listed(SCHEDULERS) if "/" in name) == sorted(
        {
            f"{'NAME' if number[module] > 1 else name}/{module}"
            for name in FOLDERS
            for module in modules(SCHEDULERS / name)
        }
    )
    assert not any(listed(SCHEDULERS / name) for name in FOLDERS)


def test_every_scheduler_has_its_folder_in_the_list() -> None:
    with_modules = {path.name for path in SCHEDULERS.iterdir() if (path / "scheduler.py").exists()}
    assert with_modules - {"functions"} == set(FOLDERS)
