"""What an agent imports before it forks is ours, and never a user's."""

from __future__ import annotations

import pytest

from launcher.worker import preload


@pytest.mark.parametrize(
    ("entry", "modules"),
    [
        ("workloads.ddp:main", ("workloads.ddp",)),
        ("workloads.function:main", ("workloads.function",)),  # whose target is the user's, and is imported in the rank
        ("launcher.worker.program:main", ()),
        ("my.module:main", ()),
        ("tests.chaos.counting:main", ()),
        ("workloads_of_mine.train:main", ()),
        ("workloads:main", ()),
    ],
)
def test_what_may_be_imported_before_the_fork(entry: str, modules: tuple[str, ...]) -> None:
    assert preload.modules(entry) == modules
