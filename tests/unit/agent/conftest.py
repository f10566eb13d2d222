"""Agents of unit tests live as long as the test: their files for stacks are closed then."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher import processes


@pytest.fixture(autouse=True)
def stacks_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[int] = []
    make = processes.memory_file

    def noted(name: str) -> int:
        descriptor = make(name)
        if name.startswith("stacks-"):  # others belong to objects that close them
            made.append(descriptor)
        return descriptor

    monkeypatch.setattr(processes, "memory_file", noted)
    yield
    for descriptor in made:
        os.close(descriptor)
