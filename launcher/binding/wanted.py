"""Parses `launch.bind`."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.errors import ConfigError, near
from launcher.units import parse_ranges

AUTO, NONE, SOCKET, NUMA, CORE, MAP = KINDS = ("auto", "none", "socket", "numa", "core", "map")


@dataclass(frozen=True)
class Wanted:
    """A parsed value of `launch.bind`."""

    kind: str  # one of KINDS
    lists: tuple[tuple[int, ...], ...] = ()  # for map, the CPUs of each local rank; else empty


def parse(text: str) -> Wanted:
    """Parses `launch.bind`: auto, none, socket, numa, core, or `map:0-7:8-15` with the CPUs of each local rank.

    Raises ConfigError: the text is none of these, or the same CPU is listed for two ranks.
    """
    kind, colon, rest = text.partition(":")
    if kind not in KINDS or bool(colon) != (kind == MAP):
        raise ConfigError(
            f"launch.bind={text!r} is not auto, none, socket, numa, core or map:LIST (map:0-7:8-15 gives local rank 0 "
            f"CPUs 0 to 7, and local rank 1 CPUs 8 to 15).{near(kind, KINDS)}"
        )
    if kind != MAP:
        return Wanted(kind)
    lists = []
    owner: dict[int, int] = {}
    for place, part in enumerate(rest.split(":")):
        try:
            cpus = parse_ranges(part)
        except ValueError:
            cpus = ()
        if not cpus:
            raise ConfigError(f"launch.bind={text!r}: {part!r} is not a list of CPUs such as 0-7 or 0-3,64-67")
        for cpu in cpus:
            if cpu in owner:
                raise ConfigError(
                    f"launch.bind={text!r}: CPU {cpu} is given to local rank {owner[cpu]} and to local rank {place}"
                )
            owner[cpu] = place
        lists.append(cpus)
    return Wanted(MAP, tuple(lists))
