"""Values as words of a shell script: each is quoted, unless it is shell code on purpose."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from launcher.spec.plan import CONTROL


class Raw:
    """Text that is shell code on purpose: a set-up line of the cluster's profile."""

    def __init__(self, text: str) -> None:
        self.text = text


class Rendered(str):
    """What a block or a macro has come to: its values are quoted already (`{{ super() }}`)."""

    __slots__ = ()


def quote(value: Any) -> str:
    """The value as one shell word (jinja2's `finalize`).

    Raises:
        ValueError: it contains a line break or another control character.
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
    return Raw(" ".join(map(quote, words)))
