"""Converts values to override text, which Hydra and OmegaConf parse back to the same values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_REFERENCE = re.compile(r"(\\*)\$\{")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'(?:,|\Z)", re.DOTALL)
_QUOTE_OR_END = re.compile(r"(\\*)('|\Z)")


def key_of(override: str) -> str:
    """Returns the key of an override: `lr` for `+lr=0.1`."""
    return override.partition("=")[0].lstrip("+~")


def quoted(text: str) -> str:
    r"""Returns a string in quotes, so that Hydra does not parse it as a number, a list or a reference (`${...}`).

    In Hydra's grammar a backslash is special before a quote only. For OmegaConf `\${` is the text `${`, and backslashes
    before that are special too. The text `???` cannot be written: it is OmegaConf's mark of a missing value.
    """
    literal = _REFERENCE.sub(lambda found: found[1] * 2 + r"\${", text)
    return "'" + _QUOTE_OR_END.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), literal) + "'"


def element(value: Any) -> str:
    """Returns a plain value as override text: a quoted string, a number, true, null, or a list or mapping of these."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{element(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(element, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def texts(value: str) -> list[str] | None:
    """Returns the strings of which `element` has made an override's value, a string or a list; None: it has not."""
    listed = value.startswith("[") and value.endswith("]")
    rest, found = value[1:-1] if listed else value, list[str]()
    while rest and (match := _QUOTED.match(rest)):
        halved = re.sub(r"(\\+)('|\Z)", lambda found: found[1][: len(found[1]) // 2] + found[2], match[1])
        text = re.sub(r"(\\+)(?=\$\{)", lambda found: found[1][: len(found[1]) // 2], halved)
        if quoted(text) != f"'{match[1]}'":  # a reference, or another's way of quoting
            return None
        found.append(text)
        rest = rest[match.end() :]
    return None if rest or (not listed and len(found) != 1) else found
