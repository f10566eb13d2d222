"""What an agent imports before it forks is ours, and never a user's."""

from __future__ import annotations

import importlib

import pytest

from launcher.agent.workers import preload


@pytest.mark.parametrize(
    ("entry", "modules"),
    [
        ("workloads.ddp:main", ("workloads.ddp",)),
        ("workloads.function:main", ("workloads.function",)),  # whose target is the user's, and is imported in the rank
        ("launcher.worker.main:run_rank", ()),
        ("my.module:main", ()),
        ("tests.chaos.counting:main", ()),
        ("workloads_of_mine.train:main", ()),
        ("workloads:main", ()),
    ],
)
def test_what_may_be_imported_before_the_fork(
    entry: str, modules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    preload(entry)
    assert tuple(imported) == modules


def test_an_import_that_fails_is_left_to_the_ranks() -> None:
    preload("workloads.is_not_there:main")
