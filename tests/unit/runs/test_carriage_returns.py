"""Of a line that is written again and again the last state is shown, as a terminal does it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.output_files import LONGEST_STATE, LineCollapser, last_state

TQDM = b"\rloss:   0%|          | 0/3 [00:00<?, ?it/s]\rloss:  33%|###       | 1/3\rloss: 100%|##########| 3/3\n"


@pytest.mark.parametrize(
    ("text", "lines", "states"),
    [
        (b"one\ntwo\n", b"one\ntwo\n", []),
        (TQDM, b"loss: 100%|##########| 3/3\n", []),
        (b"  0%\r 50%\r100%\r\nnext\n", b"100%\nnext\n", []),
        (b"one\r\ntwo\r\n", b"one\ntwo\n", []),  # lines of a Windows program
        (b"  0%\r 50%\r", b"", [b" 50%"]),
        (b" 50%\rsaved\n", b"saved\n", []),  # a line over the bar replaces it; its next state brings it back
        (b" 50%\r    \rdone\n", b"done\n", []),
        (b" 50%\r    \r", b"", []),  # it wiped itself off
        (b" 50%\r\r", b"", [b" 50%"]),  # back to the beginning, and nothing written there
        (b"[0]  1%\r[1]  2%\r[0]  3%\r[1] hello\n", b"[1] hello\n", [b"[0]  3%"]),
        (b"[0]  1%\r[1]  2%\r[0]  3%\r", b"", [b"[1]  2%", b"[0]  3%"]),
        (b"[0]  1%\rlauncher: stopped\n", b"launcher: stopped\n", [b"[0]  1%"]),
        (b"[0]  1%\rwhat has no end", b"what has no end", [b"[0]  1%"]),
    ],
)
def test_lines_and_states(text: bytes, lines: bytes, states: list[bytes]) -> None:
    collapsed = LineCollapser()
    assert collapsed.add(text) == lines
    assert collapsed.states == states
    assert collapsed.end() == b"".join(state + b"\n" for state in states)
    assert collapsed.states == []


@given(st.lists(st.sampled_from([b"[0] ", b"[1] ", b"ab", b"  ", b"\r", b"\n", b"\r\n"])), st.data())
def test_pieces_come_to_the_same_as_the_whole(words: list[bytes], data: st.DataObject) -> None:
    """Wherever what was written is cut behind the end of a line or of a state."""
    text = b"".join(words) + b"\n"
    whole = LineCollapser()
    lines = whole.add(text)
    places = [place for place in range(1, len(text)) if text[place - 1 : place] in (b"\n", b"\r")]
    places = [place for place in places if text[place - 1 : place + 1] != b"\r\n"]
    cuts = sorted(data.draw(st.sets(st.sampled_from(places)))) if places else []
    pieces = LineCollapser()
    ends = [0, *cuts, len(text)]
    assert b"".join(pieces.add(text[start:end]) for start, end in itertools.pairwise(ends)) == lines
    assert pieces.states == whole.states


def test_a_bar_that_runs_for_days_takes_no_memory() -> None:
    collapsed = LineCollapser()
    for step in range(100):
        assert collapsed.add(b"[3] %06d " % step + b"#" * 100_000 + b"\r") == b""
    assert [len(state) for state in collapsed.states] == [LONGEST_STATE]


@pytest.mark.parametrize(
    ("line", "shown"), [("one", "one"), (" 1%\r 2%", " 2%"), (" 1%\r 2%\r", " 2%"), ("", ""), ("\r", "")]
)
def test_a_whole_line(line: str, shown: str) -> None:
    assert last_state(line) == shown
