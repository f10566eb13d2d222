"""The journals of slot managers."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from launcher.pilots.manager import FreePoints
from launcher.runs.point_claims import Claims, Manager
from tests.golden.golden import check
from tests.unit.pilots.managers import Points, packed_sweep, slot_manager


def test_the_journal_of_a_slot_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreePoints, "others_done", property(lambda _: True, lambda *_: None), raising=False)
    one = packed_sweep(tmp_path / "one", 1)
    slot_manager(one, Points({}), monkeypatch).run()
    two = packed_sweep(tmp_path / "two", 4)
    slot_manager(two, Points(dict.fromkeys(range(4), 1)), monkeypatch).run()
    text = "".join(Claims(sweep.path, 0).journal(Manager(0, 0, 0, 0)).read_text() for sweep in (one, two))
    for pattern, value in (
        (r'"time": [\d.]+', '"time": 1.5'), (r'"(pid|start)": \d+', r'"\1": 1234'),
        (r'"namespace": "[^"]*"', '"namespace": "<namespace>"'), (re.escape(f'"{socket.gethostname()}"'), '"login1"'),
    ):  # fmt: skip
        text = re.sub(pattern, value, text)
    check("formats/written/managers.jsonl", text)
