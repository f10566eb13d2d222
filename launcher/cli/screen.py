"""Where commands print: the one place that writes to the terminal.

Names of folders, logs and a scheduler's words are other people's, and a terminal acts upon escape sequences in them:
its title, its clipboard, what seems to stand in the lines above. So while a command runs, whatever is printed passes
`Screen.write`, which removes them. What must reach the terminal as it is asks for it by name:

| | gets |
|---|---|
| `raw` | bars and colours that rich makes; the texts in them are cleaned one by one |
| `write_output` | what a run printed: its colours on a terminal, and every byte where there is none |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from launcher.escapes import clean, coloured

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


class Screen:
    """A text stream without what a terminal acts upon; all but writing is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Cleaned:
    """Inside, stdout and stderr are Screens."""

    def __enter__(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast("TextIO", Screen(stream)) for stream in self._before)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._before


def raw(stream: TextIO) -> TextIO:
    """What is below a Screen, for escape sequences of our own."""
    return stream.stream if isinstance(stream, Screen) else stream


def write_output(data: bytes) -> None:
    """Writes what a run printed to stdout: as it is, or on a terminal without what does more than colour it."""
    stream = raw(sys.stdout)
    if stream.isatty():
        stream.write(coloured(data.decode(errors="replace")))
    else:
        stream.buffer.write(data)
