"""Text without what a terminal acts upon. Pure; loads nothing but `re`, for every command needs it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m|\r)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # halves of characters, too


def clean(text: str) -> str:
    """Without what a terminal acts upon, but line breaks and tabs: what others print and raise is not to reach it."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def coloured(text: str) -> str:
    """The same with colours (SGR) and carriage returns, which programs print themselves and which do no harm."""
    return "".join(part if place % 2 else clean(part) for place, part in enumerate(_COLOURS.split(text)))


def one_line(text: str) -> str:
    """The same in a line, as a cell of a table: a line break in a name would begin a row of its own."""
    return clean(text.replace("\n", " ").replace("\t", " "))
