"""Removes the values of secret variables from a run's record: from its overrides and its config."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher import redaction
from launcher.errors import ConfigError

REDACTED = "(secret)"  # replaces a value in a record
MIN_LENGTH = 8  # characters; shorter values are not searched for in other values, since they would be found anywhere
_VARIABLE = re.compile(r"\s*[+~]*cluster\.environment\.([^=\s]+)\s*=\s*(.*)", re.DOTALL)
_SECTION = re.compile(r"\s*[+~]*cluster\.environment\s*=(.*)", re.DOTALL)
_KEY = re.compile(r"([\w-]+)\s*:\s*")  # in a section
_NO_VALUE = r"""(?:(["']?)\$\{(?:oc\.env:\w+(?:, *null)?|[\w.]+)\}\1|(?i:null))?\s*"""  # a reference, null or nothing


def redact_overrides(words: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Returns overrides without the values of secrets. When the run is resumed, the environment must have them.

    | override of cluster.environment for a secret | result |
    |---|---|
    | `NAME=VALUE`, even if a later override replaces it | `NAME=${oc.env:NAME}` |
    | `~NAME=VALUE` | `~NAME` |
    | `NAME=${oc.env:OTHER}`, `NAME=null` | unchanged |

    Raises ConfigError: an override sets a secret in the whole section (`cluster.environment={...}`), so that its value
        cannot be removed.
    """
    found = []
    for word in words:
        if (one := _VARIABLE.fullmatch(word)) and redaction.is_secret(one[1], patterns):
            if not re.fullmatch(_NO_VALUE, one[2].replace("\\", "")):  # as sweepers write braces
                key = word.partition("=")[0].strip()
                word = key if key.startswith("~") else f"{key}=${{oc.env:{one[1]}}}"
        elif section := _SECTION.fullmatch(word):
            for each in _KEY.finditer(section[1]):
                empty = re.match(rf"{_NO_VALUE}[,}}]", section[1][each.end() :])
                if redaction.is_secret(each[1], patterns) and not empty:
                    raise ConfigError(
                        f"cluster.environment={{...}} has {each[1]}, a secret (env.secrets): give it by itself, as "
                        f"cluster.environment.{each[1]}=..., so that its value can be left out of the record"
                    )
        found.append(word)
    return found


def redact_config(config: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Returns a resolved config in which the values of secrets in cluster.environment are replaced."""
    cluster = dict(config.get("cluster") or {})
    names = set(secrets)
    environment = cluster.get("environment") or {}
    if not names & set(environment):
        return dict(config)
    cluster["environment"] = {name: REDACTED if name in names else value for name, value in environment.items()}
    return {**config, "cluster": cluster}


def require_absent(values: Any, secrets: Mapping[str, str]) -> None:
    """Checks that values to write contain no values of secrets of at least MIN_LENGTH characters.

    secrets: values of the secrets, by name.
    Raises ConfigError: a value or a key contains the value of a secret.
    """
    # A variable may have the path of a file with the secret: this path itself is no secret.
    wanted = {name: text for name, text in secrets.items() if len(text) >= MIN_LENGTH and not _is_path(text)}
    for key, text in _texts("", values):
        for name, value in wanted.items():
            if value in text:
                raise ConfigError(
                    f"{key or 'the config'} has the value of {name}, a secret (env.secrets), and would be written to "
                    f"the run's record: leave it out, and read {name} from the environment where it is needed"
                )


def _is_path(text: str) -> bool:
    return text.startswith("/") and os.path.exists(text)


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield key, str(name)
            yield from _texts(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(key, item)
