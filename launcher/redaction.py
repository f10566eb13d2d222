"""What may be shown to others: no secrets. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

HIDDEN = "(not shown)"
# Names of variables and keys whose values are for nobody else: patterns as the shell's, in any case; `!` excepts names.
SECRETS = (
    "*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*CREDENTIAL*", "*_KEY", "*APIKEY*", "*COOKIE*",
    "*_PAT", "*_AUTH", "!*TOKENIZER*", "!MAX_*", "!NUM_*",
)  # fmt: skip


def patterns(more: Iterable[str]) -> tuple[str, ...]:
    """The patterns of secrets that count: those that always do, and a user's own behind them (env.secrets)."""
    return (*SECRETS, *more)


def secret(name: str, patterns: Iterable[str] = SECRETS) -> bool:
    """Whether a key's or variable's name says that its value is not for others: the last pattern that fits decides."""
    found = False
    for each in patterns:
        if fnmatch.fnmatchcase(name.upper(), each.removeprefix("!").upper()):
            found = not each.startswith("!")
    return found and not name.startswith("LAUNCHER_SECRETS")  # where secrets are, and what they are called


def among(environ: Mapping[str, str | None], patterns: Iterable[str]) -> dict[str, str]:
    """The secrets in an environment. Pure."""
    patterns = list(patterns)
    return {name: value for name, value in environ.items() if value is not None and secret(name, patterns)}


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
