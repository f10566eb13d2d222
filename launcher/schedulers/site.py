"""What schedulers tell of their sites in common, and the parts of a profile's text that all of them have."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from launcher.config.schema import Cluster
from launcher.findings import Finding
from launcher.schedulers.queries import QueryError

PLAIN = re.compile(r"[A-Za-z_][\w.+/-]*")
READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null", "none"}  # by YAML
T = TypeVar("T")


class Site(ABC):
    """What a scheduler tells an ordinary user of its site. What it does not answer is left out.

    Attributes:
        pool: what it calls a part of its nodes: the key of a profile, and an option of `site init`.
        problems: what could not be found out, and why.
    """

    pool: str
    problems: tuple[str, ...]

    @abstractmethod
    def default_name(self) -> str:
        """A name for its profile: its own. Pure."""

    @abstractmethod
    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        """The lines of a profile, each value with where it came from. Pure.

        Args:
            name: of the profile.
            wanted: the pool to use; None: the default one, or the one that fits best.
            day: when the site was asked.

        Raises:
            ConfigError: there is no such pool.
        """

    @abstractmethod
    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        """What a profile says that the site does not, or no longer. Pure."""


class ErrorCollector:
    """Asks, and keeps what is not answered."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, ask: Callable[[], T], otherwise: T, what: str) -> T:
        try:
            return ask()
        except (QueryError, ValueError) as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:200]}")
            return otherwise


def plain_name(name: str) -> str:
    """A site's name as the name of a file; `site` where it has none. Pure."""
    return re.sub(r"[^\w.+-]", "-", name).lstrip("-+.") or "site"


def scalar(value: object) -> str:
    """A value as YAML reads it back."""
    text = str(value)
    plain = PLAIN.fullmatch(text) and text.lower() not in READ_AS_OTHERS
    return text if isinstance(value, int) or plain else json.dumps(text)


def memory(octets: int) -> str:
    """In whole MiB, rounded down."""
    return f"{octets // 1024**2}M"


def head(what: str, name: str, day: str, problems: Sequence[str]) -> Iterator[str]:
    """The first lines of a profile."""
    yield f"# {what} as it was on {day}, written by `launcher site init`."
    yield f"# `launcher site check {name}` tells what has changed since. Change it as you like: the site itself refuses"
    yield "# what it does not allow, and limits here only make that known before a job is submitted."
    for each in problems:
        yield f"# Not found out: {each}"
    yield "#"
