"""What schedulers share of `site init` and `doctor`: findings; a site, and its profile."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, TypeVar

from launcher.config.schema import Cluster
from launcher.errors import ConfigError, near
from launcher.fast_dataclasses import Struct
from launcher.formatting import format_size, format_time
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, Scheduler
from launcher.units import parse_memory, parse_time

PLAIN = re.compile(r"[A-Za-z_][\w.+/-]*")
READ_AS_OTHERS = {"true", "false", "yes", "no", "on", "off", "null", "none"}  # YAML: booleans, null
T = TypeVar("T")


class Level(str, Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct):
    level: Level  # how bad it is
    about: str  # the subject in a word, such as `torch`
    says: str  # what was found
    do: str = ""  # what the user should do; empty: nothing


def ok(about: str, says: str) -> Finding:
    return Finding(Level.OK, about, says)


def warning(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.WARNING, about, says, do)


def problem(about: str, says: str, do: str = "") -> Finding:
    return Finding(Level.PROBLEM, about, says, do)


def worst(findings: Iterable[Finding]) -> Level:
    """Returns the worst level among the findings; OK if there are none."""
    levels = {each.level for each in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)


class Site(Struct, ABC):
    """The facts of a site that an ordinary user can query, and a profile of it. Facts of failed queries are missing."""

    scheduler: ClassVar[str]  # its name in profiles
    # its word for a group of nodes, `partition` or `queue`: a profile key, an option of `site init`, and in the plural
    # the attribute with all of them
    pool: ClassVar[str]
    no_pool: ClassVar[str]  # line of a profile without a partition or queue

    name: str  # of the site
    title: str  # the scheduler with its version, and the site
    problems: tuple[str, ...]  # one text per failed query, with the reason

    @abstractmethod
    def facts(self) -> Iterator[str]:
        """Yields what a profile says of the site in comments: its partitions or queues first."""

    @abstractmethod
    def best(self) -> tuple[Any, str]:
        """Returns the partition or queue for a profile (None: the user has to choose one), and why."""

    @abstractmethod
    def keys(self, chosen: Any) -> Iterator[str]:
        """Yields the lines of a profile with the keys for a partition or queue, or for none."""

    @abstractmethod
    def limits(self, chosen: Any) -> Iterator[tuple[str, object, str]]:
        """Yields each limit of a profile: key, value, and its source."""

    def default_name(self) -> str:
        return re.sub(r"[^\w.+-]", "-", self.name).lstrip("-+.") or "site"

    def profile(self, name: str, wanted: str | None, day: str) -> Iterator[str]:
        """Yields the lines of a profile of the site for the pool `wanted`, None: the best one; raises ConfigError."""
        known = {each.name: each for each in getattr(self, f"{self.pool}s")}
        if wanted is not None and wanted not in known:
            there = f"there is no such {self.pool}.{near(wanted, known)} Known: {', '.join(known)}"
            raise ConfigError(f"--{self.pool}={wanted}: {there}")
        chosen, why = self.best() if wanted is None else (known[wanted], "as you asked for")
        yield f"# {self.title}, as it was on {day}, written by `launcher site init`."
        since = f"`launcher doctor --cluster {name}` tells what has changed since"
        yield f"# {since}. Change it as you like: the site itself"
        yield "# refuses what it does not allow, and limits here only make that known before a job is submitted."
        yield from (f"# Not found out: {each}" for each in self.problems)
        yield "#"
        yield from (f"# {each}" for each in self.facts())
        yield "#"
        yield f"defaults: [{self.scheduler}, _self_]"
        yield ""
        yield f"name: {scalar(name)}"
        yield self.no_pool if chosen is None else f"{self.pool}: {scalar(chosen.name)}  # {why}"
        yield from self.keys(chosen)
        limits = [
            f"  {key}: {json.dumps(value) if key == 'time' else value}  # {source}"
            for key, value, source in self.limits(chosen)
        ]
        yield from ["limits:", *limits] if limits else []


def described_schedulers() -> list[Scheduler]:
    return [each for each in registry.schedulers() if each.command]


class ErrorCollector:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, ask: Callable[[], T], otherwise: T, what: str) -> T:
        try:
            return ask()
        except (QueryError, ValueError) as error:
            self.problems.append(f"{what}: {' '.join(str(error).split())[:200]}")
            return otherwise


def no_such(pool: str, setting: str, name: str, known: Iterable[str]) -> str:
    """Returns that a profile's setting (`cluster.queue=a,b`) names a partition or queue that does not exist."""
    return f"{setting}: there is no such {pool}.{near(name, list(known))}"


def missing(pool: str, setting: str, name: str, known: Iterable[str]) -> Finding:
    text = no_such(pool, setting, name, known)
    return problem("profile", text, f"set cluster.{pool} to one of {', '.join(known)}")


def scalar(value: object) -> str:
    """Returns a value as a YAML scalar, quoted if necessary."""
    text = str(value)
    plain = PLAIN.fullmatch(text) and text.lower() not in READ_AS_OTHERS
    return text if isinstance(value, int) or plain else json.dumps(text)


def memory(octets: int) -> str:
    return f"{octets // 1024**2}M"


# -- `doctor` checks that all schedulers share


SHOWN = 30  # maximum number of partitions or queues to list
SLOW = 5.0  # a query that takes more seconds than this is reported as slow


def reachable(title: str, version: str, ask: Callable[[], str], variable: str) -> Generator[Finding, None, str | None]:
    """Yields a finding on whether the scheduler answers a query, and how fast; returns the answer, or None."""
    name, began = f"{title} {version}".strip(), time.monotonic()
    try:
        answer = ask()
    except QueryError as error:
        yield problem(
            "reachable", f"{name} does not answer: {error}",
            "try again later; if it stays so, ask who runs the scheduler (its server may be down, or "
            f"{variable} wrong)",
        )  # fmt: skip
        return None
    took = time.monotonic() - began
    if took > SLOW:
        yield warning("reachable", f"{name} answered after {took:.1f} s", "it is busy: raise "
                      "cluster.submit_timeout if submissions fail")  # fmt: skip
    else:
        yield ok("reachable", f"{name} answered in {took * 1000:.0f} ms")
    return answer


def listed(rows: Sequence[tuple[str, Sequence[tuple[str, bool]], str]], command: str) -> list[str]:
    """Returns a line for each partition or queue (name, marks, limits): `gpu (default): up to 02:00:00`."""
    lines = []
    for name, marks, limits in rows[:SHOWN]:
        words = ", ".join(word for word, is_so in marks if is_so)
        lines.append(f"{name} ({words}): {limits}" if words else f"{name}: {limits}")
    return lines + ([f"... and {len(rows) - SHOWN} more ({command})"] if len(rows) > SHOWN else [])


def stated_limits(cluster: Cluster, live: Mapping[str, int | None], where: str) -> Iterator[Finding]:
    """Yields a warning if a limit of the profile exceeds the live one (None: no limit), else an ok."""
    limits, wrong = cluster.limits, []
    try:
        stated = {
            "nodes": limits.nodes, "gpus_per_node": limits.gpus_per_node, "cpus_per_node": limits.cpus_per_node,
            "mem_per_node": None if limits.mem_per_node is None else parse_memory(limits.mem_per_node),
            "time": None if limits.time is None else parse_time(limits.time),
        }  # fmt: skip
    except ValueError as error:
        yield problem("profile", f"cluster.limits: {error}", "correct it in the profile")
        return
    for key, value in stated.items():
        most = live.get(key)
        if value is not None and key in live and most is not None and value > most:
            mine, theirs = _shown(key, value), _shown(key, most)
            wrong.append(f"cluster.limits.{key}={mine} is more than {where} gives ({theirs})")
    if wrong:
        yield warning("profile", "; ".join(wrong), "lower them in the profile, or leave them out")
    else:
        known = [key for key, value in stated.items() if value is not None]
        text = f"its limits ({', '.join(known)}) agree with" if known else "it states no limits of its own; those of"
        yield ok("profile", f"cluster={cluster.name}: {text} {where}" + ("" if known else " count"))


def _shown(key: str, value: int) -> str:
    if key == "mem_per_node":
        return format_size(value)
    return format_time(value) if key == "time" else str(value)
