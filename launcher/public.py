"""What may be shown to others, and what to a terminal: no secrets, no control characters. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

HIDDEN = "(not shown)"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # halves of characters, too
_SECRET = re.compile(r"token|secret|passw|credential|api_?key|access_?key|private_?key", re.IGNORECASE)


def clean(text: str) -> str:
    """Without what a terminal acts upon: what ranks print and raise is not to reach it."""
    return _CONTROL.sub("", _ANSI.sub("", text))


def secret(name: str) -> bool:
    """Whether a key's or variable's name says that its value is not for others."""
    return _SECRET.search(name) is not None


def without_password(text: str) -> str:
    """A URL, or what comes near to one, without its user and password."""
    try:
        parts = urlsplit(text)
        if parts.hostname and (parts.username or parts.password):
            port = f":{parts.port}" if parts.port else ""
            return f"{parts.scheme}://{HIDDEN}@{parts.hostname}{port}"
    except ValueError:
        return HIDDEN
    return re.sub(r"(^|//)[^/@\s]+@", rf"\1{HIDDEN}@", text)
