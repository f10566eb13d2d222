"""The groups of ranks that collectives run on. Pure, and free of torch, so that the login node can check them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from launcher.units import parse_ranges
from workloads import names

Members = tuple[tuple[int, ...], ...]

_RANKS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def parse_groups(value: object) -> tuple[str, ...]:
    """The kinds of groups in a config, without duplicates: names (`world`, `node`, `stride`, `all` for these three),
    and groups of explicit ranks, such as `0-1/2-3` or `0,2/1,3`.

    Raises:
        ValueError: a name is unknown, or a text that begins with a digit does not list groups of ranks.
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
    """The ranks of each group in `0-1/2-3` (two groups of two) or `0,2,5` (one of three), in ascending order, in which
    torch numbers them in a group.

    Raises:
        ValueError: the text has another form, or contains a rank twice.
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
    """The ranks of each group of a kind.

    `world` contains all ranks, `node` those of a node, `stride` those with the same local rank, one per node. Every
    rank is in one of these groups; with explicit ranks some may be in none.

    Args:
        kind: from `parse_groups`.
        node_of: node rank of each rank.

    Raises:
        ValueError: a rank does not exist.
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
    """Checks that the explicit ranks of a kind exist.

    Raises:
        ValueError: one does not.
    """
    if kind in names.GROUPS:
        return
    for rank in (rank for ranks in explicit(kind) for rank in ranks):
        if rank >= world_size:
            there = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
            raise ValueError(f"{kind!r}: there is no rank {rank}; this run has {there} (nodes x procs_per_node)")


def in_words(members: Members) -> str:
    """`4` for a group of 4 ranks, `2 x 3` for 2 groups of 3 ranks."""
    sizes = sorted({len(ranks) for ranks in members})
    size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    return size if len(members) == 1 else f"{len(members)} x {size}"
