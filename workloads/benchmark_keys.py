"""What the keys of benchmarks name: operations, patterns, types, groups of ranks, sizes.

Free of torch, so that the login node can check them before a submission.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from launcher.errors import near
from launcher.units import parse_ranges, parse_size

OPERATIONS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "send_recv",
)
PATTERNS = ("pingpong", "bandwidth", "bidirectional", "send", "isend", "batched", "ring", "fanout", "matrix")
GROUPS = ("world", "node", "stride")
REDOPS = ("sum", "prod", "min", "max", "avg")
PLACES = ("both", "out", "in")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
IN_PLACE_ONLY = ("all_reduce", "broadcast", "reduce")  # torch.distributed has one buffer for these
OUT_OF_PLACE_ONLY = ("all_to_all", "all_to_all_v", "barrier", "send_recv")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
ALL = "all"


def choose(what: str, chosen: str | Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that a config chooses, without duplicates; all known names for `all`; raises ValueError.

    what: what is chosen, for errors: operation, pattern, group. chosen: a comma-separated text, or several texts.
    """
    names = _names(chosen)
    if not names:
        raise ValueError(f"no {what} is chosen: choose {ALL} or some of {', '.join(known)}")
    for name in names:
        if name not in known and name != ALL:
            those = [ALL, *known]
            raise ValueError(f"{name!r} is no {what}; known are {', '.join(those)}.{near(name, those)}")
    return tuple(known) if ALL in names else tuple(dict.fromkeys(names))


def chooses_all(chosen: str | Iterable[str]) -> bool:
    """Returns whether `all` is among the chosen names."""
    return ALL in _names(chosen)


def _names(chosen: str | Iterable[str]) -> list[str]:
    texts = [chosen] if isinstance(chosen, str) else list(chosen)
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def choose_one(what: str, name: str, known: Sequence[str]) -> str:
    """Returns the name in a key that takes exactly one; raises ValueError, which suggests similar known names."""
    if name not in known:
        raise ValueError(f"{name!r} is no {what}; known are {', '.join(known)}.{near(name, known)}")
    return name


def places_of(operation: str, place: str) -> tuple[str, ...]:
    """Returns the places in which to measure an operation, of those it has: `out` (of place) and `in`; or none."""
    has = ("in",) if operation in IN_PLACE_ONLY else ("out",) if operation in OUT_OF_PLACE_ONLY else ("out", "in")
    return tuple(each for each in has if place in ("both", each))


def backends_for(operation: str, dtype: str, redop: str) -> tuple[str, ...]:
    """Returns the backends that have an operation for a type, by the table in the documentation of torch.distributed.

    gloo's avg divides a sum, which torch does for floating-point types only. torch's ProcessGroupMPI has no 16-bit
    floats, no reduce_scatter and no avg.
    """
    averaging = operation in REDUCING and redop == "avg"
    has = {
        "gloo": not (averaging and dtype.startswith("int")),
        "nccl": True,
        "xccl": True,  # the ranks find out which operations it lacks
        "mpi": not (averaging or operation == "reduce_scatter" or dtype in ("float16", "bfloat16")),
    }
    return tuple(backend for backend, there in has.items() if there)


# -- Parses sizes of messages, sweeps over sizes, and time budgets


MOST = 1000  # most sizes of a sweep

_FACTOR = re.compile(r"\d+(?:\.\d+)?")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)", re.IGNORECASE)
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "min": Decimal(60)}


def parse_sizes(value: object) -> tuple[int, ...]:
    """Parses `workload.sizes`, and returns the sizes in bytes, in the order written, without duplicates.

    value: a size (`1M`), a sweep `MIN:MAX:STEP`, or a list of both. STEP is a factor if it is a plain number (`8:1G:2`:
        8, 16, 32, ...), and an increment if it has a unit (`4M:64M:4M`, `8:64:8B`). `MIN:MAX` has the factor 2. MAX is
        included if a step reaches it exactly.
    Raises ValueError, also for more than MOST sizes.
    """
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    sizes: dict[int, None] = {}
    for text in texts:
        sizes.update(dict.fromkeys(_sweep(str(text).strip())))
    if not sizes:
        raise ValueError("there is no size: write 1M, 8:1G:2 or a list of sizes")
    if len(sizes) > MOST:
        raise ValueError(f"{str(value)!r} is {len(sizes)} sizes, and {MOST} is the most: take a larger step")
    return tuple(sizes)


def _sweep(text: str) -> list[int]:
    first, *more = text.split(":")
    if not more:
        return [parse_size(first)]
    if len(more) > 2:
        raise ValueError(f"{text!r} is not MIN:MAX:STEP, such as 8:1G:2 or 4M:64M:4M")
    least, most = parse_size(first), parse_size(more[0])
    if least > most:
        raise ValueError(f"{text!r}: the first size is over the last: write {':'.join([more[0], first, *more[1:]])}")
    step = more[1].strip() if len(more) == 2 else "2"
    if _FACTOR.fullmatch(step):
        return _by_factor(text, least, most, Decimal(step))
    increment = parse_size(step)
    count = (most - least) // increment + 1
    if count > MOST:
        raise ValueError(f"{text!r} is {count} sizes, and {MOST} is the most: take a larger step")
    return list(range(least, most + 1, increment))


def _by_factor(text: str, least: int, most: int, factor: Decimal) -> list[int]:
    if factor <= 1:
        raise ValueError(
            f"{text!r}: a factor of {factor} leads nowhere: use 2, or an increment with a unit ({factor}B, 4M)"
        )
    sizes: list[int] = []
    exact = Decimal(least)
    while exact <= most:
        if len(sizes) > 2 * MOST:  # refused anyway; more than MOST, since small factors repeat sizes
            raise ValueError(f"{text!r} is more than {MOST} sizes: take a larger factor")
        sizes.append(int(exact))
        exact *= factor
    return sizes


def parse_seconds(text: object) -> float:
    """Returns a time such as `200ms`, `1.5s` or `2m` in seconds; raises ValueError, for zero too."""
    match = _TIME.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{str(text)!r} is not a time: write it as 200ms, 2s or 1m")
    seconds = float(Decimal(match[1]) * _SECONDS[match[2].lower()])
    if seconds == 0:
        raise ValueError(f"{str(text)!r} is zero: write it as 200ms, 2s or 1m")
    return seconds


# -- Parses the groups of ranks that collectives run on


Members = tuple[tuple[int, ...], ...]  # the ranks of each group

_RANKS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def parse_groups(value: object) -> tuple[str, ...]:
    """Returns the kinds of groups in `workload.groups`, without duplicates; raises ValueError.

    A kind is `world`, `node`, `stride`, or a list of explicit ranks such as `0-1/2-3` or `0,2/1,3`. `all` in the config
    stands for the first three.
    """
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    kinds: list[str] = []
    for text in (str(text).strip() for text in texts):
        if text[:1].isdigit():
            explicit_groups(text)
            kinds.append(text.replace(" ", ""))
        else:
            kinds += choose("group", text, GROUPS)
    if not kinds:
        raise ValueError(f"no group is chosen: choose some of {', '.join(GROUPS)}, or ranks as 0-1/2-3")
    return tuple(dict.fromkeys(kinds))


def explicit_groups(text: str) -> Members:
    """Returns the ranks of `0-1/2-3` (two groups) or `0,2,5`, sorted, as torch numbers them; raises ValueError."""
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
    one rank of each node. With explicit ranks, some may be in no group; ValueError: one does not exist.
    """
    if kind not in GROUPS:
        members, last = explicit_groups(kind), len(node_of) - 1
        for rank in (rank for ranks in members for rank in ranks):
            if rank > last:
                there = f"ranks 0 to {last}" if last else "rank 0 alone"
                raise ValueError(f"{kind!r}: there is no rank {rank}; this run has {there} (nodes x procs_per_node)")
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


def check_root(root: int, kind: str, members: Members) -> None:
    """Raises ValueError if the smallest group of a kind does not have this root."""
    smallest = min(map(len, members))
    if not 0 <= root < smallest:
        has, can = ("1 rank", "0") if smallest == 1 else (f"{smallest} ranks", f"0 to {smallest - 1}")
        raise ValueError(f"workload.root={root}: the smallest group of {kind} has {has}, so a root is {can}")


def groups_text(members: Members) -> str:
    """Returns `4` for a group of 4 ranks, `2 x 3` for 2 groups of 3 ranks, `2 x 3-4` for groups of 3 and of 4 ranks."""
    sizes = sorted({len(ranks) for ranks in members})
    size = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    return size if len(members) == 1 else f"{len(members)} x {size}"


# -- The patterns of p2p, and the ranks for those of two ranks


MATRIX = "matrix"
GLOO_ON_GPU = "gloo sends and receives no GPU memory: add workload.device=cpu, or use another workload.backend"


def pair_of(pair: Sequence[int] | None, node_of: Sequence[int]) -> tuple[int, int]:
    """Returns the two ranks for the patterns of two ranks, also if `workload.pair` is unset; raises ValueError."""
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


def chosen_patterns(keys: Mapping[str, Any], node_of: Sequence[int]) -> tuple[str, ...]:
    """Returns the patterns to run. `all` includes the matrix only if there are several nodes (or matrix=ranks).

    Raises ValueError: a pattern is unknown, or the matrix was chosen by name and would have no pair.
    """
    wanted = choose("pattern", keys["pattern"], PATTERNS)
    of_ranks = getattr(keys["matrix"], "value", keys["matrix"]) == "ranks"
    if MATRIX not in wanted or of_ranks or len(set(node_of)) > 1:
        return wanted
    if wanted == PATTERNS:
        return tuple(name for name in wanted if name != MATRIX)
    raise ValueError(
        "workload.pattern=matrix compares nodes, and there is one: use nodes=2 or more, or workload.matrix=ranks"
    )
