"""The output of a point's parts on other nodes: copied in order, whole lines, nothing missing without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.pilots import slots
from launcher.pilots.slots import Group, Parts, printed_on
from launcher.runs import output as printed
from launcher.runs.claims import Claims, Manager
from launcher.runs.directory import Attempt, Run

LINES = [b"line %03d\n" % number for number in range(100)]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Parts, Attempt, Path, Path]:
    monkeypatch.setattr(slots, "MOST", 90)
    monkeypatch.setattr(printed, "BLOCK", 45)
    attempt = Attempt(Run(tmp_path), 0)
    there = printed_on(attempt, 1)
    there.parent.mkdir(parents=True)
    group = Group(Manager(0, 0, 0, 0), ("a", "b"), 0)
    return Parts(Claims(tmp_path, 0), group, 90.0), attempt, there, tmp_path / "output"


def test_much_output_is_copied_in_order_and_a_bounded_amount_at_once(
    copied: tuple[Parts, Attempt, Path, Path],
) -> None:
    each, attempt, there, here = copied
    there.write_bytes(b"".join(LINES)[:-1])
    each.copy_output(attempt, here)
    assert here.read_bytes() == b"".join(LINES[:10])
    for _ in range(20):
        each.copy_output(attempt, here)
    assert here.read_bytes() == b"".join(LINES[:-1])  # the last line may still grow
    each.copy_output(attempt, here, ended=True)
    assert here.read_bytes() == b"".join(LINES)[:-1]


def test_what_is_left_out_at_the_end_is_named_and_the_last_lines_follow(
    copied: tuple[Parts, Attempt, Path, Path],
) -> None:
    each, attempt, there, here = copied
    there.write_bytes(b"".join(LINES))
    each.copy_output(attempt, here, ended=True)
    notice, *lines = here.read_bytes().splitlines(keepends=True)
    assert notice.decode() == f"launcher: 810 B of the output of b is missing here: all of it is in {there}\n"
    assert lines == LINES[-10:]
