"""Parses the groups of ranks that collectives run on. Pure and free of torch, so that the login node can check them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from launcher.units import parse_ranges
from workloads import names

Members = tuple[tuple[int, ...], ...]  # the ranks of each group

_RANKS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def parse_groups(value: object) -> tuple[str, ...]:
    """Parses `workload.groups`, and returns the kinds of groups without duplicates.

    A kind is `world`, `node`, `stride`, or a list of explicit ranks such as `0-1/2-3` or `0,2/1,3`. `all` in the config
    stands for the first three.

    Raises ValueError: a name is unknown, or a text that begins with a digit does not list groups of ranks.
    """
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    kinds: list[str] = []
    for text in (str(text).strip() for text in texts):
        if text[:1].isdigit():
            explicit(text)
            kinds.append(text.replace(" ", ""))
        else:
            kinds += names.choose("group", text, names.GROUPS)
    if not kinds:
        raise ValueError(f"no group is chosen: choose some of {', '.join(names.GROUPS)}, or ranks as 0-1/2-3")
    return tuple(dict.fromkeys(kinds))


def explicit(text: str) -> Members:
    """Parses `0-1/2-3` (two groups of two ranks) or `0,2,5` (one of three), and returns the ranks of each group.

    The ranks are in ascending order, in which torch numbers them in a group.

    Raises ValueError: the text has another form, or contains a rank twice.
    """
    groups = []
    for part in text.replace(" ", "").split("/"):
        if not _RANKS.fullmatch(part):
            raise ValueError(f"{text!r} is no groups of ranks: write them as 0-1/2-3 or 0,2/1,3")
        groups.append(tuple(sorted(parse_ranges(part))))
    seen: set[int] = set()
    for rank in (rank for ranks in groups for rank in ranks):
        if rank in seen:
            raise ValueError(f"{text!r}: rank {rank} is in it twice; a rank can be in one group at a time")
        seen.add(rank)
    return tuple(groups)


def members_of(kind: str, node_of: Sequence[int]) -> Members:
    """Returns the ranks of each group of a kind.

    `world` is one group of all ranks. `node` has a group for each node. `stride` has a group for each local rank, with
    one rank of each node. With explicit ranks, some ranks may be in no group.

    kind: a kind that `parse_groups` returned.
    Raises ValueError: a rank does not exist.
    """
    if kind not in names.GROUPS:
        members = explicit(kind)
        check_ranks(kind, len(node_of))
        return members
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        nodes.setdefault(node, []).append(rank)
    if kind == "world":
        return (tuple(range(len(node_of))),)
    if kind == "node":
        return tuple(tuple(ranks) for ranks in nodes.values())
    widest = max(len(ranks) for ranks in nodes.values())
    return tuple(tuple(ranks[local] for ranks in nodes.values() if local < len(ranks)) for local in range(widest))


def check_ranks(kind: str, world_size: int) -> None:
    """Checks that the explicit ranks of a kind exist. Raises ValueError: a rank is `world_size` or more."""
    if kind in names.GROUPS:
        return
    for rank in (rank for ranks in explicit(kind) for rank in ranks):
        if rank >= world_size:
            there = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
            raise ValueError(f"{kind!r}: there is no rank {rank}; this run has {there} (nodes x procs_per_node)")


def in_words(members: Members) -> str:
    """Returns `4` for a group of 4 ranks, `2 x 3` for 2 groups of 3 ranks, `2 x 3-4` for groups of 3 and of 4 ranks."""
    sizes = sorted({len(ranks) for ranks in members})
    size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    return size if len(members) == 1 else f"{len(members)} x {size}"
