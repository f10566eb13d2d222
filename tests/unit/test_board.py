"""What an agent makes of what the others tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from launcher.node.board import Board
from torch.distributed import HashStore

from launcher.node import board
from tests.launch import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(board, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def look(first: Board) -> None:
    """A look, and the answer to what it asks is there for the next one."""
    first.look()
    asked = first._look
    if asked is not None:
        until(asked.done, "the store has answered")


def test_only_who_was_silent_while_somebody_listened_is_lost(clock: list[float]) -> None:
    meeting: Any = SimpleNamespace(members=[None, None], store=HashStore())
    first = Board(meeting, 0, heartbeat=30)
    try:
        for clock[0] in (0.0, 1.0, 11.0):
            look(first)
        clock[0] = 100.0  # it was stopped itself, or waited for a file server
        look(first)
        assert first.lost() == []
        for clock[0] in (110.0, 120.0, 130.0):
            look(first)
        assert first.lost() == []
        clock[0] = 131.0
        look(first)
        assert first.lost() == [1]
    finally:
        first.close()
