"""From a node's description to the CPUs of each of its ranks. Pure.

binding = bind(node, allowed, ranks, Wanted("auto"), cpus_per_rank=7)
binding.ranks[0].cpus
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from launcher.binding import wanted as kinds
from launcher.binding.node import Core, Gpu, Nic, Node
from launcher.binding.wanted import Wanted
from launcher.errors import NO_RETRY, LauncherError
from launcher.formatting import plural, ranges

# The fewest cores that `auto` gives to a rank alone. A rank has several threads (gloo's, say): with one core each,
# small steps were slower than unbound (`python -m benchmarks.binding` compares).
LONE = 2
SNAP = 8  # a cut moves to the nearest border of a NUMA node or a cache, by up to this part of a share


class BindingRefused(LauncherError):
    """`launch.bind=map:LIST` names CPUs that this job has not got here; it would be so again."""

    exit_code = NO_RETRY


@dataclass(frozen=True)
class Near:
    """What a rank computes on and talks through.

    Attributes:
        gpu: its accelerator; None: it uses none, or which one cannot be told.
        nic: the network device that its site pairs with it, else the one nearest to its accelerator; None: unknown.
        paired: the name that its site's profile has for that device; empty: it has none.
    """

    gpu: Gpu | None = None
    nic: Nic | None = None
    paired: str = ""


@dataclass(frozen=True)
class Bound:
    """One rank.

    Attributes:
        cpus: the CPUs that it may run on, sorted.
        cores: how many cores these are.
        own: how many of them are its part; others share the rest.
        numa: their NUMA nodes, sorted.
        near: its devices.
    """

    cpus: tuple[int, ...]
    cores: int
    own: int
    numa: tuple[int, ...]
    near: Near


@dataclass(frozen=True)
class Binding:
    """All ranks of a node.

    Attributes:
        ranks: by local rank.
        why_not: why none is bound, in words; empty: they are.
    """

    ranks: tuple[Bound, ...]
    why_not: str = ""

    @property
    def bound(self) -> bool:
        return not self.why_not


def bind(
    node: Node, allowed: Collection[int], ranks: Sequence[Near], wanted: Wanted, *, cpus_per_rank: int = 1
) -> Binding:
    """Who runs where.

    | launch.bind | the ranks | each rank gets |
    |---|---|---|
    | any | more than the cores | all that is allowed: nothing is bound |
    | any but map | what the node looks like cannot be told | the same |
    | none | | the same |
    | map | | its list |
    | socket, numa | | all allowed cores of the sockets, the NUMA nodes, that its share of auto is on |
    | core | | as few cores as have `cpus_per_rank` CPUs, of its share of auto |
    | auto | use accelerators | its part of the cores of the NUMA node nearest to its own, and of nodes of the same
      socket that are nearest to no rank's; others besides where these are fewer than it asked for |
    | auto | use none | an equal part of all cores |
    | auto | would have fewer than LONE cores, one of them at least | all allowed cores of the NUMA nodes of its part |

    Cores are never divided between ranks by their hardware threads, and no CPU is used that is not allowed.

    Args:
        node: what it looks like.
        allowed: CPUs that the job may use.
        ranks: the devices of each rank, by local rank.
        wanted: `launch.bind`.
        cpus_per_rank: how many CPUs each rank asked for; where there are enough, none gets fewer.

    Raises:
        BindingRefused: a list of map names a CPU that is not allowed, or there are fewer lists than ranks.
    """
    everything = tuple(sorted(allowed))
    cores = _allowed_cores(node, allowed)

    def unbound(why: str) -> Binding:
        numa = tuple(sorted({core.numa for core in cores}))
        own = max(1, len(cores) // len(ranks))
        return Binding(tuple(Bound(everything, len(cores), own, numa, near) for near in ranks), why)

    if wanted.kind == kinds.NONE:
        return unbound("launch.bind=none")
    if wanted.kind == kinds.MAP:
        _check_map(wanted, everything, len(ranks))
        return Binding(tuple(_bound(wanted.lists[place], cores, near) for place, near in enumerate(ranks)))
    if node.unknown or not cores or _size(cores) < len(everything):
        return unbound("; ".join(node.unknown) or "which CPUs are of one core cannot be told")
    if len(ranks) > len(cores):
        return unbound(f"{plural(len(ranks), 'rank')} and {plural(len(cores), 'core')}")
    homes = [_home(node, near, cores) for near in ranks]
    if any(near.gpu is not None for near in ranks) and None in homes:
        lost = next(near.gpu.name for near, home in zip(ranks, homes, strict=True) if home is None and near.gpu)
        return unbound(f"the NUMA node of GPU {lost} cannot be told")
    need = min(cpus_per_rank, _size(cores) // len(ranks))
    known = [home for home in homes if home is not None]
    if len(known) < len(homes):
        shares = _divide(cores, len(ranks))
    else:
        shares = _enough(_near(cores, known), known, node, need, cores)
    if any(not share for share in shares):  # a NUMA node with more ranks than cores, and none to spare elsewhere
        return unbound("there are not enough cores for each rank")
    wide = shares
    if wanted.kind == kinds.CORE:
        wide = shares = [_fewest(share, need) for share in shares]
    elif wanted.kind != kinds.AUTO or min(map(len, shares)) < LONE:
        level = kinds.SOCKET if wanted.kind == kinds.SOCKET else kinds.NUMA
        centres = [None] * len(homes) if wanted.kind == kinds.AUTO else homes
        wide = [_whole(level, share, home, cores) for share, home in zip(shares, centres, strict=True)]
    return Binding(tuple(
        _bound([cpu for core in mask for cpu in core.cpus], cores, near, len(share))
        for mask, share, near in zip(wide, shares, ranks, strict=True)
    ))  # fmt: skip


def _allowed_cores(node: Node, allowed: Collection[int]) -> list[Core]:
    """The cores with those of their CPUs that are allowed; those of a NUMA node, and of a cache, are neighbours."""
    mine = frozenset(allowed)
    found = [
        Core(cpus, core.numa, core.socket, core.cache)
        for core in node.cores
        if (cpus := tuple(cpu for cpu in core.cpus if cpu in mine))
    ]
    return sorted(found, key=lambda core: (core.socket, core.numa, core.cache, core.cpus))


def _check_map(wanted: Wanted, allowed: Sequence[int], ranks: int) -> None:
    if len(wanted.lists) < ranks:
        raise BindingRefused(
            f"launch.bind has {plural(len(wanted.lists), 'list')} of CPUs, and this node {plural(ranks, 'rank')}: "
            "give one for each, separated by colons"
        )
    mine = frozenset(allowed)
    for place, cpus in enumerate(wanted.lists[:ranks]):
        if missing := [cpu for cpu in cpus if cpu not in mine]:
            raise BindingRefused(
                f"launch.bind gives local rank {place} the CPUs {ranges(missing)}, which this job may not use "
                f"here: it has {ranges(allowed)}"
            )


def _bound(cpus: Sequence[int], cores: Iterable[Core], near: Near, own: int | None = None) -> Bound:
    mine = frozenset(cpus)
    touched = [core for core in cores if not mine.isdisjoint(core.cpus)]
    numa = tuple(sorted({core.numa for core in touched}))
    return Bound(tuple(sorted(mine)), len(touched), own or len(touched), numa, near)


def _home(node: Node, near: Near, cores: Sequence[Core]) -> int | None:
    """The NUMA node of a rank's devices: one that has allowed cores, as near as may be; None: it cannot be told.

    A GPU's memory may be a NUMA node of its own, without cores, and the job may have no cores next to the GPU.
    """
    there = sorted({core.numa for core in cores})
    told = [each.numa for each in (near.gpu, near.nic) if each is not None and each.numa is not None]
    if not told:
        return there[0] if near.gpu is not None and len(there) == 1 else None
    return min(there, key=lambda numa: (node.distance(told[0], numa), numa))


def _near(cores: Sequence[Core], homes: Sequence[int]) -> list[list[Core]]:
    """Each NUMA node's cores, divided among the ranks whose home it is; those of nodes that are nobody's home go to
    ranks of the same socket: whole nodes to each home where that comes out even, else equal parts to all."""
    shares: list[list[Core]] = [[] for _ in homes]
    sockets = {core.numa: core.socket for core in cores}
    by_numa: dict[int, list[Core]] = {}
    for core in cores:
        by_numa.setdefault(core.numa, []).append(core)
    owners = {numa: [place for place, home in enumerate(homes) if home == numa] for numa in by_numa}
    for socket in sorted(set(sockets.values())):
        here = [numa for numa in by_numa if sockets[numa] == socket]
        lived_in = [numa for numa in here if owners[numa]]
        empty = [numa for numa in here if not owners[numa]]
        for at, numa in enumerate(empty if lived_in else ()):
            even = len(empty) % len(lived_in) == 0
            owners[numa] = (
                owners[lived_in[at * len(lived_in) // len(empty)]] if even
                else [place for home in lived_in for place in owners[home]]
            )  # fmt: skip
    for numa in sorted(by_numa, key=lambda numa: (numa not in homes, numa)):
        for place, share in zip(owners[numa], _divide(by_numa[numa], len(owners[numa])), strict=True):
            shares[place] += share
    return shares


def _divide(cores: Sequence[Core], parts: int) -> list[list[Core]]:
    """Neighbouring cores in parts as equal as may be, cut where a NUMA node or a cache ends if that is near."""
    if not parts:
        return []
    share = len(cores) / parts
    borders = {
        level: [at for at in range(1, len(cores)) if key(cores[at - 1]) != key(cores[at])]
        for level, key in enumerate((lambda core: core.numa, lambda core: core.cache))
    }
    cuts = [0]
    for part in range(1, parts):
        ideal = part * share
        close = [
            (level, abs(at - ideal), at)
            for level, borders_ in borders.items()
            for at in borders_
            if abs(at - ideal) <= share / SNAP and at > cuts[-1]
        ]
        cuts.append(min(close)[2] if close else max(int(ideal), cuts[-1]))
    return [list(cores[low:high]) for low, high in zip(cuts, [*cuts[1:], len(cores)], strict=True)]


def _enough(
    shares: list[list[Core]], homes: Sequence[int], node: Node, need: int, cores: Sequence[Core]
) -> list[list[Core]]:
    """The shares when ranks with fewer than `need` CPUs have got cores of nobody, and of those with more, the nearest
    first."""
    taken = {core for share in shares for core in share}
    free = [core for core in cores if core not in taken]
    for place, share in enumerate(shares):
        while _size(share) < need or not share:
            spare = [
                (node.distance(homes[place], other[-1].numa), -_size(other), index)
                for index, other in enumerate([*shares, free])
                if other and (other is free or (other is not share and _size(other) - len(other[-1].cpus) >= need))
            ]
            if not spare:
                break
            share.append([*shares, free][min(spare)[2]].pop())
    return shares


def _size(share: Sequence[Core]) -> int:
    return sum(len(core.cpus) for core in share)


def _fewest(share: Sequence[Core], need: int) -> list[Core]:
    taken: list[Core] = []
    for core in share:
        if _size(taken) >= need:
            break
        taken.append(core)
    return taken


def _whole(kind: str, share: Sequence[Core], home: int | None, cores: Sequence[Core]) -> list[Core]:
    """All cores of the sockets or NUMA nodes of a share; of a rank with a home, of that one alone."""
    if kind == kinds.NUMA:
        numas = {core.numa for core in share} if home is None else {home}
        return [core for core in cores if core.numa in numas]
    sockets = {core.socket for core in (share if home is None else cores) if home is None or core.numa == home}
    return [core for core in cores if core.socket in sockets]
