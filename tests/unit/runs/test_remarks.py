"""What events tell: preflights in lines."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.failures.codes import PreflightThen
from launcher.failures.messages import of_preflight
from launcher.runs import event_files
from launcher.runs.events import NodeFinding, Observation, Preflighted
from launcher.runs.history import remarks

LOW_TEXT = "/x has 1 MiB free: free some, or set TMPDIR to another file system"
LOW = Observation(LOW_TEXT)
BAD = [NodeFinding("node3 (node 2)", "node3", "space", LOW)]


@pytest.mark.parametrize(
    ("then", "bad", "warnings", "lines"),
    [
        ("go", [], [], ["preflight: 4 nodes fine in 1.2 s"]),
        (
            "go", [], [NodeFinding("node1", "node1", "space", LOW)],
            ["preflight: 4 nodes fine in 1.2 s", f"preflight: warning: node1: {LOW_TEXT}"],
        ),
        ("without", BAD, [], [f"preflight: node3 (node 2) is left out: {LOW_TEXT}"]),
        ("fail", BAD, [], [f"preflight: node3 (node 2): {LOW_TEXT}"]),
    ],
)  # fmt: skip
def test_a_preflight_in_lines(then: str, bad: Any, warnings: Any, lines: list[str]) -> None:
    event = Preflighted(
        round=0, then=PreflightThen(then), nodes=4, bad=tuple(bad), warnings=tuple(warnings), seconds=1.23
    )
    assert of_preflight(event) == lines
    assert remarks([{"event": "met"}, event_files.entry(event)]) == lines
