"""The parts of `site init` and `site check` that all schedulers share: the facts of a site, lines of its profile."""

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
READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null", "none"}  # YAML: booleans, null
T = TypeVar("T")


class Named(Protocol):
    """An object with a name, such as a partition or queue."""

    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Named)


class Site(ABC):
    """The facts of a site that an ordinary user can query. Facts of failed queries are missing."""

    pool: str  # the scheduler's word for a group of nodes: `partition` or `queue`, a profile key and `site init` option
    problems: tuple[str, ...]  # one text per failed query, with the reason

    @abstractmethod
    def default_name(self) -> str:
        """Returns the default name of the site's profile."""

    @abstractmethod
    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        """Yields the lines of a profile of the site, with the source of each value as a comment.

        Args:
            name: name of the profile.
            wanted: partition or queue to use; None: the default one, or the one that fits best.
            day: date of the queries, for the comment at the top.

        Raises:
            ConfigError: the wanted partition or queue does not exist.
        """

    @abstractmethod
    def differences(self, cluster: Cluster) -> Iterator[Finding]:
        """Compares a profile with the site, and yields findings, also where they agree."""


def described_schedulers() -> list[DescribesSite]:
    """Returns the schedulers for which `site init` can write a profile."""
    return [each for each in registry.schedulers() if isinstance(each, DescribesSite)]


class ErrorCollector:
    """Runs queries, and collects the errors of failed ones in `problems`."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, ask: Callable[[], T], otherwise: T, what: str) -> T:
        """Returns the result of the query `ask`, or `otherwise` if it fails; `what` names it in `problems`."""
        try:
            return ask()
        except (QueryError, ValueError) as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:200]}")
            return otherwise


def requested(pools: Sequence[P], name: str | None, option: str) -> P | None:
    """Returns the partition or queue with the name that the user has given, or None without a name.

    Args:
        pools: all partitions or queues of the site.
        name: name from the command line; None: not given.
        option: name of the option of `site init` (`partition`, `queue`), for the error.

    Raises:
        ConfigError: there is no partition or queue with this name.
    """
    known = {each.name: each for each in pools}
    if name is not None and name not in known:
        raise ConfigError(f"--{option}={name}: there is no such {option}.{near(name, known)} Known: {', '.join(known)}")
    return None if name is None else known[name]


def plain_name(name: str) -> str:
    """Returns a site's name with only characters that are valid in a file name; `site` if none is left."""
    return re.sub(r"[^\w.+-]", "-", name).lstrip("-+.") or "site"


def scalar(value: object) -> str:
    """Returns a value as a YAML scalar, quoted if necessary."""
    text = str(value)
    plain = PLAIN.fullmatch(text) and text.lower() not in READ_AS_OTHERS
    return text if isinstance(value, int) or plain else json.dumps(text)


def memory(octets: int) -> str:
    """Returns a size in bytes as whole MiB, rounded down: `1024M`."""
    return f"{octets // 1024**2}M"


def head(what: str, name: str, day: str, problems: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the comment at the top of a profile.

    Args:
        what: description of the site.
        name: name of the profile.
        day: date of the queries.
        problems: facts that could not be queried, with the reason.
    """
    yield f"# {what} as it was on {day}, written by `launcher site init`."
    yield f"# `launcher site check {name}` tells what has changed since. Change it as you like: the site itself refuses"
    yield "# what it does not allow, and limits here only make that known before a job is submitted."
    for each in problems:
        yield f"# Not found out: {each}"
    yield "#"


def limit_lines(limits: Sequence[tuple[str, object, str]]) -> Iterator[str]:
    """Yields the lines of a profile's section `limits`; none without limits.

    Args:
        limits: (key, value, source) of each limit; a time is a text such as `02:00:00`.
    """
    if limits:
        yield "limits:"
    for key, value, source in limits:
        yield f"  {key}: {json.dumps(value) if key == 'time' else value}  # {source}"
