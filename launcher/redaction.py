"""Recognizes the names of secret settings and variables; hides their values, also in overrides, and URLs' passwords."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

HIDDEN = "(not shown)"
# Names of variables and keys with secret values: shell patterns, in any case; `!` makes an exception.
SECRETS = (
    "*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*CREDENTIAL*", "*_KEY", "*APIKEY*", "*COOKIE*",
    "*_PAT", "*_AUTH", "!*TOKENIZER*", "!MAX_*", "!NUM_*",
)  # fmt: skip
# Options, and names in front of `=` or `:`; parts of paths, such as /data/tokens.bin, are none
_NAMES = re.compile(r"""(?<![\w./-])(?:-+[\w-]+|[\w-]+(?=["']?\s*[:=]))""")


def all_patterns(more: Iterable[str]) -> tuple[str, ...]:
    return (*SECRETS, *more)


def is_secret(name: str, patterns: Iterable[str] = SECRETS) -> bool:
    """Returns whether a name is a secret's, by the last shell pattern that matches, in any case; `!`: it is none.

    An option is named as the variable would be: `api-key` as API_KEY.
    """
    found, name = False, name.replace("-", "_")
    for each in patterns:
        if fnmatch.fnmatchcase(name.upper(), each.removeprefix("!").upper()):
            found = not each.startswith("!")
    return found and not name.startswith("LAUNCHER_SECRETS")  # the paths and names of secrets are no secrets


def secrets_in(environ: Mapping[str, str | None], patterns: Iterable[str]) -> dict[str, str]:
    patterns = list(patterns)
    return {name: value for name, value in environ.items() if value is not None and is_secret(name, patterns)}


def without_secrets(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    hidden = secrets_in(environ, patterns)
    return {name: value for name, value in environ.items() if name not in hidden}


def public(name: str, value: Any) -> Any:
    """Returns the value of a key or variable as others may see it: a secret is replaced, a URL loses its password.

    So is a list or text with a secret's name in it, such as `--token hf_...`, `--api-key=...` or `{token: hf_...}`.
    """
    items = value if isinstance(value, list) else []
    names = _NAMES.findall(value) if isinstance(value, str) else []
    for item in items:
        if isinstance(item, str):
            head, equals, _ = item.partition("=")
            names += [*_NAMES.findall(item), *([head] if equals or re.fullmatch(r"-*[\w-]+", item) else [])]
    if value is not None and any(is_secret(each.lstrip("-")) for each in (name, *names)):
        return HIDDEN
    if isinstance(value, str):
        return without_password(value) if "://" in value else value
    if isinstance(value, dict):
        return {key: public(str(key), each) for key, each in value.items()}
    return [public(name, each) for each in items] if items else value


def redact_override(override: str) -> str:
    """Returns an override (`KEY=VALUE`); if a part of its key is a secret's name, with a placeholder for the value."""
    key, equals, text = override.partition("=")
    secret = any(map(is_secret, key.lstrip("+~").split(".")))
    return f"{key}={HIDDEN if secret else public('', text)}" if equals else override


def without_password(text: str) -> str:
    """Removes the user name and the password from a URL, or from text that looks like one."""
    try:
        parts = urlsplit(text)
        if parts.hostname and (parts.username or parts.password):
            port = f":{parts.port}" if parts.port else ""
            return f"{parts.scheme}://{HIDDEN}@{parts.hostname}{port}"
    except ValueError:
        return HIDDEN
    return re.sub(r"(^|//)[^/@\s]+@", rf"\1{HIDDEN}@", text)
