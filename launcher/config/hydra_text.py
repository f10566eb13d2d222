"""Converts values to override text, which Hydra and OmegaConf parse back to the same values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_REFERENCE = re.compile(r"(\\*)\$\{")
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
