"""Collapses lines that a program overwrites with carriage returns, as progress bars do, to their last state.

Each text in front of a `\\r` is a state of its line, and replaces the state before it. (Where a state is shorter than
the one before, a terminal still shows the end of the longer one; progress bars pad their lines.)
"""

from __future__ import annotations

import re

LONGEST_STATE = 1 << 12  # bytes kept of a state; longer than a line of any terminal
END = re.compile(rb"(\r?\n|\r(?!\n))")
_RANK = re.compile(rb"\[\d+\] ")  # agents' prefix of a rank's lines and states


class LineCollapser:
    """Takes output in pieces and returns its completed lines, each reduced to its last state.

    Each rank has a state of its own, so the bars of several ranks do not replace each other.
    """

    def __init__(self) -> None:
        self._states: dict[bytes, bytes] = {}  # by the rank's prefix: the state of its open line

    def add(self, text: bytes) -> bytes:
        """Returns the lines that `text` completes, and a last line without a line break."""
        if not self._states and b"\r" not in text:
            return text
        *parts, rest = END.split(text)
        lines = [
            line for written, end in zip(parts[::2], parts[1::2], strict=True) for line in self._ended(written, end)
        ]
        if rest:
            self._states.pop(_prefix(rest), None)
        return b"".join([*lines, rest])

    def _ended(self, written: bytes, end: bytes) -> list[bytes]:
        prefix = _prefix(written)
        state = self._states.pop(prefix, b"")
        if end != b"\r":
            return [(written if len(written) > len(prefix) else state or written) + b"\n"]
        shown = written[:LONGEST_STATE] if len(written) > len(prefix) else state
        if shown[len(prefix) :].strip():  # an empty state: the bar was erased
            self._states[prefix] = shown
        return []

    @property
    def states(self) -> list[bytes]:
        """The states of the open lines; the one that changed last is at the end."""
        return list(self._states.values())

    def end(self) -> bytes:
        """Returns the states of the open lines as lines, and forgets them; called at the end of the output."""
        lines = b"".join(state + b"\n" for state in self._states.values())
        self._states.clear()
        return lines


def _prefix(written: bytes) -> bytes:
    match = _RANK.match(written)
    return match[0] if match else b""


def last_state(line: str) -> str:
    """Returns what a terminal shows of a completed line."""
    return next((state for state in reversed(line.split("\r")) if state), "")
