"""Checks the config of p2p. Pure, and free of torch, so that the login node can refuse what would fail in the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from workloads import names
from workloads.sizes import parse_seconds, parse_sizes

T = TypeVar("T")

PAIRS = ("pingpong", "bandwidth", "bidirectional")  # patterns of two ranks
MATRIX = "matrix"


def pair_of(pair: Sequence[int] | None, node_of: Sequence[int]) -> tuple[int, int]:
    """Returns the two ranks for the patterns of two ranks.

    pair: `workload.pair`; None: the first ranks of the first and the last node, or the first and the last rank of a
        single node.
    Raises ValueError: a rank does not exist, or both are the same.
    """
    last = len(node_of) - 1
    if pair is None:
        return 0, (node_of.index(node_of[last]) or last)
    written = f"workload.pair=[{','.join(map(str, pair))}]"
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ValueError(f"{written} is not two ranks: write workload.pair=[0,{max(last, 1)}]")
    for rank in pair:
        if not 0 <= rank <= last:
            there = f"ranks 0 to {last}" if last else "rank 0 alone"
            raise ValueError(f"{written}: there is no rank {rank}; this run has {there} (nodes x procs_per_node)")
    return pair[0], pair[1]


def chosen(keys: Mapping[str, Any], node_of: Sequence[int]) -> tuple[str, ...]:
    """Returns the patterns to run. `all` includes the matrix only if there are several nodes (or matrix=ranks).

    keys: the keys of `launcher.config.schema.P2P` with their values.
    Raises ValueError: a pattern is unknown, or the matrix was chosen by name and would have no pair.
    """
    wanted = _named("pattern", lambda: names.choose("pattern", keys["pattern"], names.PATTERNS))
    of_ranks = getattr(keys["matrix"], "value", keys["matrix"]) == "ranks"
    if MATRIX not in wanted or of_ranks or len(set(node_of)) > 1:
        return wanted
    if wanted == names.PATTERNS:
        return tuple(name for name in wanted if name != MATRIX)
    raise ValueError(
        "workload.pattern=matrix compares nodes, and there is one: use nodes=2 or more, or workload.matrix=ranks"
    )


def check(keys: Mapping[str, Any], node_of: Sequence[int]) -> None:
    """Checks all keys of p2p against the ranks of the run. The arguments are those of `chosen`.

    Raises ValueError: a value is not valid; the text names its key.
    """
    chosen(keys, node_of)
    pair_of(keys["pair"], node_of)
    _named("dtype", lambda: names.choose_one("dtype", keys["dtype"], names.DTYPES))
    _named("sizes", lambda: parse_sizes(keys["sizes"]))
    if keys["budget"] is not None:
        _named("budget", lambda: parse_seconds(keys["budget"]))
    for key, least in (("window", 1), ("iterations", 1), ("warmup", 0)):
        if keys[key] < least:
            raise ValueError(f"workload.{key}={keys[key]}: it must be at least {least}")
    if not 0 < keys["slow"] < 1:
        raise ValueError(f"workload.slow={keys['slow']} is not a part of the median: write it as 0.7 or so")
    if not keys["slow_latency"] > 1:
        raise ValueError(
            f"workload.slow_latency={keys['slow_latency']} is not a multiple of the median: write it as 3 or so"
        )


def _named(key: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError as error:
        raise ValueError(f"workload.{key}: {error}") from None
