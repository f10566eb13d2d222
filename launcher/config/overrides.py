"""Converts overrides as users type them to Hydra's, and values to override text, which is parsed back to the same."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from launcher.config import schema
from launcher.config.keys import WORKLOADS, of_cluster
from launcher.config.scheduler_table import names, schedulers_with, settings_class
from launcher.errors import ConfigError

OWN_ARGUMENTS = ("workload.kwargs", "workload.flags", "workload.overrides")
OF_CLUSTER = ("directives", "environment", "rank_environment", "expects", "chunk", "resources")
OPENED = (*(f"cluster.{name}" for name in OF_CLUSTER), *OWN_ARGUMENTS)  # new keys in them need no `+`
_RACE = re.compile(r"^(\+*cluster\.race=)\[([^]'\"[]*)\]$")
# What Hydra takes for a number, or for true or false
_NO_TEXT = re.compile(r"[+-]?(?:[\d_]*\.?\d[\d_]*\.?(?:e[+-]?[\d_]+)?|inf|nan)|true|false", re.IGNORECASE)
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


# -- Overrides as users type them


def opened(words: Iterable[str]) -> list[str]:
    """Converts overrides as users type them to Hydra's.

    Adds `++` where Hydra requires it for keys not in the schema, which are names of the user's own in the sections of
    `OPENED` (`cluster.environment.NAME=1`); quotes texts that Hydra would take for numbers and write in another way
    (`cluster.account=2024_017`), and what is in `cluster.race=[partition=a,partition=b]`.
    """
    own = tuple(f"{key}{rest}" for key in OPENED for rest in (".", "={"))
    words = [_RACE.sub(_quoted_members, _as_text(word)) for word in words]
    return [f"++{word}" if word.startswith(own) else word for word in words]


def _as_text(word: str) -> str:
    key, _, value = word.partition("=")
    parts = [each.strip() for each in value.split(",")]  # values of a multirun
    if key.startswith("~") or set(value) & set("'\"()[]{}\\") or not any(map(_is_changed, parts)) or not _is_text(key):
        return word
    return f"{key}={','.join(quoted(each) if _is_changed(each) else each for each in parts)}"


def _is_changed(value: str) -> bool:
    if not _NO_TEXT.fullmatch(value):
        return False
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return str(kind(value)) != value
    return True


def _is_text(key: str) -> bool:
    # Not a text with a form of its own (`time=1_800`)
    section, _, name = key.lstrip("+").rpartition(".")
    if section in ("cluster.environment", "cluster.rank_environment"):
        return True
    hints = (get_type_hints(kind, include_extras=True).get(name) for kind in _kinds_of(section))
    return next(filter(None, hints), None) in (str, str | None)


def _kinds_of(section: str) -> Iterator[type]:
    # One by one: the keys of other schedulers are not loaded to find one that all have
    if section == "workload":
        yield from WORKLOADS.values()
    elif section == "cluster":
        yield schema.Cluster
        yield from filter(None, map(settings_class, names()))
    elif isinstance(kind := get_type_hints(schema.Config).get(section) if section else schema.Config, type):
        yield kind


def _quoted_members(found: re.Match[str]) -> str:
    return f"{found[1]}[{','.join(quoted(each.strip()) for each in found[2].split(','))}]"


def as_typed(word: str) -> str:
    """Returns an override as the user typed it, without the `++` that `opened` has added."""
    short = word.removeprefix("++")
    return short if opened([short]) == [word] else word


def require_cluster(words: Sequence[str], scheduler: str) -> None:
    """Raises ConfigError if a key of another scheduler was typed without `cluster=`, and would be ignored (local)."""
    settings = settings_class(scheduler)
    if settings is None or not settings.IGNORES_OTHERS or any(key_of(word) == "cluster" for word in words):
        return
    for word in words:
        own = of_cluster(key_of(word))
        if own and own not in settings.__dataclass_fields__ and (owners := schedulers_with(own)):
            raise ConfigError(
                f"{as_typed(word)}: without cluster= this runs on {scheduler}, which ignores it: add "
                f"cluster={owners[0]}, or cluster={scheduler} if you mean that"
            )
