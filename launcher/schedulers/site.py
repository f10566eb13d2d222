"""The facts of a site, and the parts of a profile that are the same for all schedulers."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from launcher.config.schema import Cluster
from launcher.errors import ConfigError, near
from launcher.findings import Finding
from launcher.schedulers import registry
from launcher.schedulers.diagnosis import DescribesSite
from launcher.schedulers.queries import QueryError

PLAIN = re.compile(r"[A-Za-z_][\w.+/-]*")
READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null", "none"}  # by YAML
T = TypeVar("T")


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Named)


class Site(ABC):
    """The facts of a site that an ordinary user can query; those of failed queries are missing.

    Attributes:
        pool: the scheduler's name for a group of nodes (partition, queue): a key of profiles, an option of `site init`.
        problems: the queries that failed, and why.
    """

    pool: str
    problems: tuple[str, ...]

    @abstractmethod
    def default_name(self) -> str:
        """Returns the default name of its profile. Pure."""

    @abstractmethod
    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        """Returns the lines of a profile, each value with its source. Pure.

        Args:
            name: of the profile.
            wanted: the pool to use; None: the default one, or the one that fits best.
            day: of the queries.

        Raises:
            ConfigError: there is no such pool.
        """

    @abstractmethod
    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        """Returns the differences between a profile and the site. Pure."""


def described_schedulers() -> list[DescribesSite]:
    """Returns the schedulers that describe their site, from which a profile of it can be made."""
    return [each for each in registry.schedulers() if isinstance(each, DescribesSite)]


class ErrorCollector:
    """Calls queries, and collects the errors of those that fail in `problems`."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, ask: Callable[[], T], otherwise: T, what: str) -> T:
        try:
            return ask()
        except (QueryError, ValueError) as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:200]}")
            return otherwise


def requested(pools: Sequence[P], name: str | None, option: str) -> P | None:
    """Returns the partition or queue that the user has named; None: he has named none. Pure.

    Args:
        pools: all of the site.
        name: what the user has given.
        option: the scheduler's word for it, which is the option of `site init`.

    Raises:
        ConfigError: it does not exist.
    """
    known = {each.name: each for each in pools}
    if name is not None and name not in known:
        raise ConfigError(f"--{option}={name}: there is no such {option}.{near(name, known)} Known: {', '.join(known)}")
    return None if name is None else known[name]


def plain_name(name: str) -> str:
    """Returns the name of a site as a file name; `site` if it has none. Pure."""
    return re.sub(r"[^\w.+-]", "-", name).lstrip("-+.") or "site"


def scalar(value: object) -> str:
    """Returns a value in YAML, quoted if necessary."""
    text = str(value)
    plain = PLAIN.fullmatch(text) and text.lower() not in READ_AS_OTHERS
    return text if isinstance(value, int) or plain else json.dumps(text)


def memory(octets: int) -> str:
    """Returns a size in bytes as whole MiB, rounded down: `1024M`."""
    return f"{octets // 1024**2}M"


def head(what: str, name: str, day: str, problems: Sequence[str]) -> Iterator[str]:
    """Returns the comment at the top of a profile."""
    yield f"# {what} as it was on {day}, written by `launcher site init`."
    yield f"# `launcher site check {name}` tells what has changed since. Change it as you like: the site itself refuses"
    yield "# what it does not allow, and limits here only make that known before a job is submitted."
    for each in problems:
        yield f"# Not found out: {each}"
    yield "#"


def limit_lines(limits: Sequence[tuple[str, object, str]]) -> Iterator[str]:
    """Returns the section `limits` of a profile; nothing if there are none. Pure.

    Args:
        limits: key, value and source of each; times are texts.
    """
    if limits:
        yield "limits:"
    for key, value, source in limits:
        yield f"  {key}: {json.dumps(value) if key == 'time' else value}  # {source}"
