"""Node lists: Slurm's (`rack[1-2]n[01-04,7]`) without scontrol, PBS node files, the variable LAUNCHER_HOSTS."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from itertools import product

from launcher import bounds
from launcher.errors import RunError
from launcher.formatting import long_size

VARIABLE = "LAUNCHER_HOSTS"
COMPRESSED = "zlib:"  # a list that begins with this is base64 of zlib


def expand(text: str) -> list[str]:
    """Returns the host names of a Slurm node list, in Slurm's order.

    A name may have several brackets at any position; the leftmost one varies slowest. A zero-padded low bound
    (`01-10`) pads all numbers of its range.

    Raises:
        ValueError: the brackets do not match, or a range is invalid.
    """
    hosts: list[str] = []
    for name in _split(text):
        parts = _parts(name, text)
        hosts.extend(map("".join, product(*parts)) if len(parts) > 1 else parts[0])
    return hosts


def _split(text: str) -> list[str]:
    names, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            names.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"node list {text!r}: brackets do not match at character {position + 1}")
    if depth:
        raise ValueError(f"node list {text!r}: a bracket is not closed")
    names.append(text[start:])
    return [name for name in (name.strip() for name in names) if name]


def _parts(name: str, text: str) -> list[list[str]]:
    # `text` is the whole node list, for error messages
    parts: list[list[str]] = []
    while name:
        literal, bracket, rest = name.partition("[")
        if literal:
            parts.append([literal])
        if not bracket:
            break
        ranges, _, name = rest.partition("]")
        parts.append([number for item in ranges.split(",") for number in _range(item, text)])
    return parts


def _range(item: str, text: str) -> list[str]:
    low, dash, high = item.partition("-")
    if not dash:
        high = low
    if not (low.isdecimal() and high.isdecimal()) or int(low) > int(high):
        raise ValueError(f"node list {text!r}: {item!r} is not a range of numbers")
    width = len(low)
    return [f"{number:0{width}}" for number in range(int(low), int(high) + 1)]


def expand_counts(text: str) -> list[int]:
    """Expands Slurm's repeated counts: `2(x3),1` -> [2, 2, 2, 1] (SLURM_TASKS_PER_NODE)."""
    counts: list[int] = []
    for item in text.split(","):
        count, _, times = item.strip().partition("(x")
        counts.extend([int(count)] * int(times.rstrip(")") or 1))
    return counts


def hosts_of(node_file: str) -> dict[str, int]:
    """Returns the distinct hosts of a PBS node file in order, each with the index of its first line (for pbsdsh -n)."""
    lines: dict[str, int] = {}
    for number, line in enumerate(node_file.splitlines()):
        if host := line.strip():  # a chunk without CPUs leaves an empty line
            lines.setdefault(host, number)
    return lines


def variable(hosts: Sequence[str]) -> dict[str, str]:
    """Returns the variable LAUNCHER_HOSTS: names with commas between them; compressed above bounds.HOSTS_BYTES.

    Raises:
        RunError: the kernel takes no variable of that size.
    """
    text = ",".join(hosts)
    if len(text) > bounds.HOSTS_BYTES:
        text = COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        if len(text) + len(f"{VARIABLE}=") > bounds.VARIABLE_BYTES:
            raise RunError(
                f"the names of {len(hosts):,} hosts take {long_size(len(text))}, and an environment variable has at "
                f"most {long_size(bounds.VARIABLE_BYTES)}: use fewer nodes"
            )
    return {VARIABLE: text}


def hosts_in(environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts in the variable LAUNCHER_HOSTS; [] if it is missing or empty."""
    text = environ.get(VARIABLE, "")
    if text.startswith(COMPRESSED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(COMPRESSED))).decode()
    return text.split(",") if text else []
