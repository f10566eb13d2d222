"""What an agent imports before it forks is ours, and never a user's."""

from __future__ import annotations

import importlib
import signal

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
    preload(entry, 60)
    assert tuple(imported) == modules


def test_an_import_that_fails_is_left_to_the_ranks() -> None:
    preload("workloads.is_not_there:main", 60)


def test_an_import_that_hangs_is_left_to_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout's signal comes at once, so that nothing here waits."""
    started, finished, before = [], [], signal.getsignal(signal.SIGALRM)

    def hang(name: str) -> None:
        assert signal.alarm(0) > 0, "no timeout is set"
        started.append(name)
        signal.raise_signal(signal.SIGALRM)
        finished.append(name)

    monkeypatch.setattr(importlib, "import_module", hang)
    preload("workloads.ddp:main", 60)
    assert (started, finished) == (["workloads.ddp"], [])
    assert (signal.getsignal(signal.SIGALRM), signal.alarm(0)) == (before, 0)
