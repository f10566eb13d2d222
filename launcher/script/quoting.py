"""Quotes values as words of a shell script, unless they are shell code on purpose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from launcher.spec.plan import CONTROL


class Raw:
    """Text that is shell code on purpose, such as a set-up line of the cluster's profile."""

    def __init__(self, text: str) -> None:
        self.text = text


class Rendered(str):
    """The rendered text of a block or macro (`{{ super() }}`), in which values are quoted; not quoted a second time."""

    __slots__ = ()


def quote(value: Any) -> str:
    """Returns a value quoted as one shell word; `Raw` and `Rendered` text unchanged. jinja2 calls it for each value.

    Raises:
        ValueError: the value contains a line break or another control character.
    """
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Rendered):
        return value
    text = str(value)
    if match := CONTROL.search(text):
        raise ValueError(f"refusing to write the control character {match[0]!r} of {text!r} into a script")
    return shlex.quote(text)


def command(words: Sequence[Any]) -> Raw:
    """Returns the shell code of a command, with each word quoted (except `Raw` ones)."""
    return Raw(" ".join(map(quote, words)))
