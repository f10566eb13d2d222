"""The journals of slot managers."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from launcher.pilots.board import Board
from launcher.runs.claims import Claims
from launcher.runs.events import ManagerEnded, PointBegan
from tests.golden.golden import check
from tests.unit.pilots.managers import FIRST, SECOND, Following, Points, grouped, packed_sweep, slot_manager


def test_the_journal_of_a_slot_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "others_done", property(lambda _: True, lambda *_: None), raising=False)
    one = packed_sweep(tmp_path / "one", 1)
    slot_manager(one, Points({}), monkeypatch).run()
    two = packed_sweep(tmp_path / "two", 4)
    slot_manager(two, Points(dict.fromkeys(range(4), 1)), monkeypatch).run()
    three, points = grouped(tmp_path / "three", 1, {0: None})
    with pytest.raises(SystemExit):
        slot_manager(three, points, monkeypatch, hosts=("a", "b")).run()
    node = Following(packed_sweep(tmp_path / "four", 1), Points({0: 1}))
    node.leader(PointBegan(point=0, slot=0, attempt=0))
    node.steps = [node.ends, lambda: node.leader(ManagerEnded())]
    node.run(monkeypatch)
    written = [(one, FIRST), (two, FIRST), (three, FIRST), (node.sweep, SECOND)]
    text = "".join(Claims(sweep.path, 0).journal(each).read_text() for sweep, each in written)
    for pattern, value in (
        (r'"time": [\d.]+', '"time": 1.5'), (r'"(pid|start)": \d+', r'"\1": 1234'),
        (r'"namespace": "[^"]*"', '"namespace": "<namespace>"'), (re.escape(f'"{socket.gethostname()}"'), '"login1"'),
    ):  # fmt: skip
        text = re.sub(pattern, value, text)
    check("formats/written/managers.jsonl", text)
