"""A store that does not answer stops nobody."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from launcher.node.line import Line, LineDead
from torch.distributed import HashStore, Store


def test_answers_come_in_order() -> None:
    line = Line(HashStore(), 30)
    line.post(lambda store: store.set("a", "1"))
    assert line.ask(lambda store: store.get("a")) == b"1"
    line.close()


def test_a_store_that_does_not_answer_is_given_up() -> None:
    answer, line = threading.Event(), Line(HashStore(), 0.2)

    def hangs(_: Store) -> Any:
        answer.wait(30)

    with pytest.raises(LineDead, match=r"no answer for 0\.2 s"):
        line.ask(hangs)
    with pytest.raises(LineDead):
        line.require()
    line.close()  # does not wait for it
    answer.set()


def test_a_store_that_fails_is_not_asked_again() -> None:
    calls = []

    def fails(_: Store) -> None:
        calls.append(1)
        raise RuntimeError("Broken pipe")

    line = Line(HashStore(), 30)
    for _ in range(2):
        with pytest.raises(LineDead, match="Broken pipe"):
            line.ask(fails)
    assert calls == [1]
    line.close()
