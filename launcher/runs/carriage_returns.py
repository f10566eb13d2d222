"""Lines that a program writes again and again, as progress bars do: what a terminal would show of them in the end.

A carriage return goes back to the beginning of the line, and what is written then replaces what stood there. So each
text in front of a `\\r` is a state of its line, and of the states that follow each other the last one counts. (Of a
state that is shorter than the one before it, a terminal leaves the end of the longer one; bars pad theirs.)
"""

from __future__ import annotations

import re

LONGEST_STATE = 1 << 12  # bytes that are kept of a state; no terminal shows more in a line
END = re.compile(rb"(\r?\n|\r(?!\n))")
_RANK = re.compile(rb"\[\d+\] ")  # what agents put in front of a rank's lines and states


class Lines:
    """Takes what was written in pieces, and hands on the lines that have ended, each with its last state alone.

    A state is kept for each rank, so that those of several bars do not replace each other.
    """

    def __init__(self) -> None:
        self._states: dict[bytes, bytes] = {}  # the rank's prefix, and what its line shows

    def add(self, text: bytes) -> bytes:
        """The lines that have ended in `text`; a last one without its end too."""
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
        if shown[len(prefix) :].strip():  # else the bar has been wiped off
            self._states[prefix] = shown  # as the newest one
        return []

    @property
    def states(self) -> list[bytes]:
        """What lines show that have not ended, the one that changed last at the end."""
        return list(self._states.values())

    def end(self) -> bytes:
        """These as lines: nothing more will come."""
        lines = b"".join(state + b"\n" for state in self._states.values())
        self._states.clear()
        return lines


def _prefix(written: bytes) -> bytes:
    match = _RANK.match(written)
    return match[0] if match else b""


def last_state(line: str) -> str:
    """What a terminal shows of a whole line."""
    return next((state for state in reversed(line.split("\r")) if state), "")
