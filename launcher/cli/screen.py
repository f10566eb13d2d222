"""Removes terminal escape sequences from everything that commands print.

Names of folders, logs and the output of schedulers come from other people. Escape sequences in them could change the
terminal's title, its clipboard, or the lines above. So while a command runs, stdout and stderr are `Screen` objects,
which remove escape sequences. Two functions are exceptions:

| function | for |
|---|---|
| `raw` | bars and colours that rich makes; each text in them is cleaned before |
| `write_output` | the output of a run: its colours are kept on a terminal; elsewhere every byte is kept |
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from launcher.formatting import clean, coloured

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


class Screen:
    """A text stream that removes escape sequences from text written to it. All other methods are those of `stream`."""

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
    """Inside a `with` block, replaces sys.stdout and sys.stderr by Screens."""

    def __enter__(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (cast("TextIO", Screen(stream)) for stream in self._before)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._before


def raw(stream: TextIO) -> TextIO:
    """Returns the original stream behind a Screen, to which escape sequences can be written."""
    return stream.stream if isinstance(stream, Screen) else stream


def write_output(data: bytes) -> None:
    """Writes a run's output to stdout. On a terminal, escape sequences other than colours are removed."""
    stream = raw(sys.stdout)
    if stream.isatty():
        stream.write(coloured(data.decode(errors="replace")))
    else:
        stream.buffer.write(data)
