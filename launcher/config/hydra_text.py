"""The text of overrides: values as Hydra and OmegaConf read them as the very same values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_REFERENCE = re.compile(r"(\\*)\$\{")
_QUOTE_OR_END = re.compile(r"(\\*)('|\Z)")


def key_of(override: str) -> str:
    """`lr` of `+lr=0.1`."""
    return override.partition("=")[0].lstrip("+~")


def quoted(text: str) -> str:
    r"""A text in quotes, so that nothing in it is a number, a list or a reference (`${...}`).

    In Hydra's grammar backslashes count in front of a quote only; for OmegaConf `\${` is the text `${`, and backslashes
    in front of that count too. The text `???` has no such form: it is OmegaConf's mark of a missing value.
    """
    literal = _REFERENCE.sub(lambda found: found[1] * 2 + r"\${", text)
    return "'" + _QUOTE_OR_END.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), literal) + "'"


def element(value: Any) -> str:
    """Any plain value: a text in quotes, a number, true, null, a list or a section of them, whose keys are words."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{element(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(element, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
