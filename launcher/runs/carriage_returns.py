"""Collapses lines that a program overwrites with carriage returns, as progress bars do, to their last state.

A program that writes `10%\\r20%\\r30%\\n` overwrites one line twice. Each text in front of a `\\r` is a state of the
line, and replaces the state before it. (A terminal would still show the end of a longer earlier state; progress bars
pad their lines, so that makes no difference.)
"""

from __future__ import annotations

import re

LONGEST_STATE = 1 << 12  # bytes that are kept of a state: more than a line of any terminal has
END = re.compile(rb"(\r?\n|\r(?!\n))")
_RANK = re.compile(rb"\[\d+\] ")  # agents' prefix of a rank's lines and states


class LineCollapser:
    """Takes output in pieces and returns its completed lines, each reduced to its last state.

    The open line of each rank (known by its prefix `[3] `) is kept apart, so that progress bars of several ranks do not
    replace each other.
    """

    def __init__(self) -> None:
        self._states: dict[bytes, bytes] = {}  # by the rank's prefix: the state of its open line

    def add(self, text: bytes) -> bytes:
        """Returns the lines that `text` completes, and the unchanged rest of `text` after its last line end."""
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
        """The last states of lines that have no line break yet; the most recently changed one is at the end."""
        return list(self._states.values())

    def end(self) -> bytes:
        """Returns `states` as lines, and clears them. Call it at the end of the output."""
        lines = b"".join(state + b"\n" for state in self._states.values())
        self._states.clear()
        return lines


def _prefix(written: bytes) -> bytes:
    match = _RANK.match(written)
    return match[0] if match else b""


def last_state(line: str) -> str:
    """Returns the last state of a completed line that is not empty: what a terminal shows of the line."""
    return next((state for state in reversed(line.split("\r")) if state), "")
