"""Removes terminal control sequences from text. Pure; imports only `re`, since every command needs it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_COLOURS = re.compile(r"(\x1b\[[0-9;:]*m|\r)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # surrogates as well


def clean(text: str) -> str:
    """Removes escape sequences and control characters, except line breaks and tabs. For text from other programs."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def coloured(text: str) -> str:
    """Like `clean`, but keeps colours (SGR) and carriage returns, which are harmless."""
    return "".join(part if place % 2 else clean(part) for place, part in enumerate(_COLOURS.split(text)))


def one_line(text: str) -> str:
    """Like `clean`, but line breaks and tabs become spaces, so that the text fits into one row of a table."""
    return clean(text.replace("\n", " ").replace("\t", " "))
