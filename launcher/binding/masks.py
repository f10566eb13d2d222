"""Which CPUs and devices each rank gets, as was asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile

from launcher.binding import hardware
from launcher.binding.hardware import CPUS, Core, Gpu, Nic, Node, no_topology
from launcher.errors import NO_RETRY, ConfigError, LauncherError, near
from launcher.failures.codes import Unbound
from launcher.fast_dataclasses import Struct
from launcher.formatting import plural, ranges
from launcher.units import parse_ranges

AUTO, NONE, SOCKET, NUMA, CORE, MAP = KINDS = ("auto", "none", "socket", "numa", "core", "map")


class BindRequest(Struct):
    kind: str  # one of KINDS
    lists: tuple[tuple[int, ...], ...] = ()  # for map, the CPUs of each local rank; else empty


def parse(text: str) -> BindRequest:
    """Parses `launch.bind`: auto, none, socket, numa, core, or `map:0-7:8-15`; raises ConfigError."""
    kind, colon, rest = text.partition(":")
    if kind not in KINDS or bool(colon) != (kind == MAP):
        raise ConfigError(
            f"launch.bind={text!r} is not auto, none, socket, numa, core or map:LIST (map:0-7:8-15 gives local rank 0 "
            f"CPUs 0 to 7, and local rank 1 CPUs 8 to 15).{near(kind, KINDS)}"
        )
    if kind != MAP:
        return BindRequest(kind)
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
    return BindRequest(MAP, tuple(lists))


# -- Decides which CPUs each rank of a node may use. A rank's share is the group of cores that it gets for itself when
# the node's cores are divided among the ranks


# Least number of cores for each rank with which `auto` gives ranks cores of their own. A rank has several threads: with
# one core each, small steps were slower than without binding (`python -m benchmarks.binding`).
LONE = 2
SNAP = 8  # a cut between two shares moves to the border of a NUMA node or cache within 1/SNAP of a share's size


class BindingRefused(LauncherError):
    """`launch.bind=map:LIST` does not fit the CPUs or ranks of the job on this node. A retry would fail, too."""

    exit_code = NO_RETRY


class RankDevices(Struct):
    gpu: Gpu | None = None  # the rank's accelerator; None: it uses none, or it is not known which one
    nic: Nic | None = None  # from cluster.nics, or else the nearest to its accelerator; None: unknown
    paired: str = ""  # name of the network device in cluster.nics; empty: `nic` is not from cluster.nics


class RankBinding(Struct):
    cpus: tuple[int, ...]  # the CPUs that the rank may use, sorted
    cores: int  # number of cores of these CPUs
    own: int  # number of these cores that are the rank's share; it uses the others together with other ranks
    numa: tuple[int, ...]  # the NUMA nodes of these cores, sorted
    devices: RankDevices


class Binding(Struct):
    ranks: tuple[RankBinding, ...]  # by local rank
    unbound: Unbound | None = None  # why the ranks are not bound to cores; None: they are bound

    @property
    def bound(self) -> bool:
        return self.unbound is None


def unbound(node: Node, allowed: Collection[int], ranks: Sequence[RankDevices], why: Unbound) -> Binding:
    """Returns a binding in which each rank may use all allowed CPUs. node, allowed, ranks: see `bind`."""
    cores = _allowed_cores(node, allowed)
    cpus, numa = tuple(sorted(allowed)), tuple(sorted({core.numa for core in cores}))
    own = max(1, len(cores) // len(ranks))
    return Binding(tuple(RankBinding(cpus, len(cores), own, numa, devices) for devices in ranks), why)


def bind(
    node: Node, allowed: Collection[int], ranks: Sequence[RankDevices], wanted: BindRequest, *, cpus_per_rank: int = 1
) -> Binding:
    """Returns which CPUs each rank may use. The first row that applies decides.

    | launch.bind | case | each rank gets |
    |---|---|---|
    | none | | all allowed CPUs: the ranks are not bound |
    | map | | the CPUs of its list |
    | any other | there are more ranks than cores, or the node's cores or an accelerator's NUMA node are unknown | all
      allowed CPUs: the ranks are not bound |
    | socket, numa | | all allowed cores of the sockets (NUMA nodes) of the share that it would get with auto |
    | core | | the fewest cores of the share that it would get with auto that have `cpus_per_rank` CPUs |
    | auto | some rank's share would have fewer than LONE cores | all allowed cores of the NUMA nodes of its share |
    | auto | the ranks use accelerators | a share of the cores of the NUMA node nearest to its accelerator, and of those
      of the same socket that are nearest to no accelerator; also other cores if these are fewer than requested |
    | auto | the ranks use no accelerators | an equal share of all cores |

    All hardware threads of a core belong to the same rank. Only allowed CPUs are used.

    cpus_per_rank: number of CPUs that each rank requested. If there are enough for all, each rank gets as many.
    Raises BindingRefused: a list of map names a CPU that is not allowed, or there are fewer lists than ranks.
    """
    everything = tuple(sorted(allowed))
    cores = _allowed_cores(node, allowed)
    refuse = partial(unbound, node, allowed, ranks)
    if wanted.kind == NONE:
        return refuse(Unbound("launch.bind=none"))
    if wanted.kind == MAP:
        _check_map(wanted, everything, len(ranks))
        return Binding(tuple(_bound(wanted.lists[place], cores, devices) for place, devices in enumerate(ranks)))
    if node.unbound is not None:
        return refuse(node.unbound)
    if not cores or _size(cores) < len(everything):
        return refuse(no_topology(CPUS))
    few = f"{plural(len(ranks), 'rank')} and {plural(len(cores), 'core')}"
    few_cores = Unbound(few)
    if len(ranks) > len(cores):
        return refuse(few_cores)
    homes = [_home(node, devices, cores) for devices in ranks]
    lost = [each.gpu.name for each, home in zip(ranks, homes, strict=True) if home is None and each.gpu]
    if lost:
        return refuse(Unbound(f"the NUMA node of GPU {lost[0]} is not known"))
    need = min(cpus_per_rank, _size(cores) // len(ranks))
    known = [home for home in homes if home is not None]
    if len(known) < len(homes):
        shares = _divide(cores, len(ranks))
    else:
        shares = _enough(_by_home(cores, known), known, node, need, cores)
    if any(not share for share in shares):  # a NUMA node has more ranks than cores, and no other has cores left
        return refuse(few_cores)
    wide = shares
    if wanted.kind == CORE:
        wide = shares = [_fewest(share, need) for share in shares]
    elif wanted.kind != AUTO or min(map(len, shares)) < LONE:
        level = SOCKET if wanted.kind == SOCKET else NUMA
        centres = [None] * len(homes) if wanted.kind == AUTO else homes
        wide = [_whole(level, share, home, cores) for share, home in zip(shares, centres, strict=True)]
    return Binding(tuple(
        _bound([cpu for core in mask for cpu in core.cpus], cores, devices, len(share))
        for mask, share, devices in zip(wide, shares, ranks, strict=True)
    ))  # fmt: skip


def _allowed_cores(node: Node, allowed: Collection[int]) -> list[Core]:
    mine = frozenset(allowed)
    found = [
        Core(cpus, core.numa, core.socket, core.cache)
        for core in node.cores
        if (cpus := tuple(cpu for cpu in core.cpus if cpu in mine))
    ]
    return sorted(found, key=lambda core: (core.socket, core.numa, core.cache, core.cpus))


def _check_map(wanted: BindRequest, allowed: Sequence[int], ranks: int) -> None:
    if len(wanted.lists) < ranks:
        lists = f"launch.bind has {plural(len(wanted.lists), 'list')} of CPUs"
        raise BindingRefused(f"{lists}, and this node {plural(ranks, 'rank')}: give one for each, separated by colons")
    mine = frozenset(allowed)
    for place, cpus in enumerate(wanted.lists[:ranks]):
        if missing := [cpu for cpu in cpus if cpu not in mine]:
            given = f"launch.bind gives local rank {place} the CPUs {ranges(missing)}"
            raise BindingRefused(f"{given}, which this job may not use here: it has {ranges(allowed)}")


def _bound(cpus: Sequence[int], cores: Iterable[Core], devices: RankDevices, own: int | None = None) -> RankBinding:
    mine = frozenset(cpus)
    touched = [core for core in cores if not mine.isdisjoint(core.cpus)]
    numa = tuple(sorted({core.numa for core in touched}))
    return RankBinding(tuple(sorted(mine)), len(touched), own or len(touched), numa, devices)


def _home(node: Node, devices: RankDevices, cores: Sequence[Core]) -> int | None:
    # The NUMA node of the device itself may have no cores (the memory of a GPU), or none that is allowed
    there = sorted({core.numa for core in cores})
    known = [each.numa for each in (devices.gpu, devices.nic) if each is not None and each.numa is not None]
    if not known:
        return there[0] if devices.gpu is not None and len(there) == 1 else None
    return min(there, key=lambda numa: (node.distance(known[0], numa), numa))


def _by_home(cores: Sequence[Core], homes: Sequence[int]) -> list[list[Core]]:
    # Cores of a NUMA node that is no rank's home go to ranks with homes on the same socket: whole NUMA nodes if each
    # home gets the same number of them, else an equal part of each NUMA node to each of these ranks.
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
    # A cut moves to the end of a NUMA node or a cache if that is near
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
    # The added cores are in no share yet, or from shares with more than `need` CPUs; the nearest cores come first
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
    if kind == NUMA:
        numas = {core.numa for core in share} if home is None else {home}
        return [core for core in cores if core.numa in numas]
    sockets = {core.socket for core in (share if home is None else cores) if home is None or core.numa == home}
    return [core for core in cores if core.socket in sockets]


# Variables that limit which devices a process sees, by vendor. HIP reads CUDA_VISIBLE_DEVICES only if the last one is
# empty or not set (rocclr), and both index the devices that ROCR_VISIBLE_DEVICES leaves.
MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
NAMES = frozenset(name for names in MASKS.values() for name in names)
NO_DEVICES = ("", "-1", "NoDevFiles")  # entries after which none counts; the last one is Slurm's


def entries_of(mask: str) -> list[str]:
    """Returns the entries of such a variable's value that count."""
    return [*takewhile(lambda entry: entry not in NO_DEVICES, map(str.strip, mask.split(",")))]


def mask_of(names: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the variable to narrow: of these the last that is set, or the last."""
    return next((name for name in reversed(names) if name in environ), names[-1])


class DeviceError(Exception):
    """It is not known which devices a rank uses, so ranks that need them cannot be bound."""


def of_ranks(
    node: Node, environ: Mapping[str, str], ranks: Sequence[int], *, gpus: bool, most: int | None = None,
    pairs: Sequence[str] = (),
) -> list[RankDevices]:  # fmt: skip
    """Returns the devices of each of these ranks; raises DeviceError.

    environ: of the agent. most: number of visible accelerators that the run uses, the first ones; None: all.
    pairs: `cluster.nics`: the network device of each accelerator of the node, or without accelerators of each rank.
    """
    shown = visible_gpus(node, environ)[:most] if gpus else []
    if gpus and not shown:
        raise DeviceError("no accelerator is found in /sys or /proc")
    named = {each: nic for nic in node.nics for each in (nic.name, nic.interface) if each}
    if missing := tuple(name for name in dict.fromkeys(pairs) if name not in named):
        nics = ", ".join(nic.name for nic in node.nics) or "none"
        text = f"cluster.nics names {', '.join(missing)}, and there is {nics}"
        raise DeviceError(text)
    found = []
    for rank in ranks:
        gpu = shown[rank % len(shown)] if shown else None
        place = rank if gpu is None else node.gpus.index(gpu)
        pair = pairs[place % len(pairs)] if pairs else ""
        found.append(RankDevices(gpu, named[pair] if pair else _nearest(node, gpu), pair))
    return found


def visible_gpus(node: Node, environ: Mapping[str, str]) -> list[Gpu]:
    """Returns the accelerators that a process with this environment sees, by index; raises DeviceError."""
    shown = list(node.gpus)
    names = MASKS.get(shown[0].vendor, ()) if shown else ()
    for mask in (*names[:-2], mask_of(names[-2:], environ)) if names else ():
        if (text := environ.get(mask)) is not None:
            shown = _masked(shown, mask, text)
    return shown


def visible_here(environ: Mapping[str, str]) -> int | None:
    """Returns how many accelerators of this machine a process with this environment sees; None: that is not known."""
    node = hardware.read(environ=environ)
    if hardware.is_uncounted(node) and not (node.gpus and NAMES & environ.keys()):
        return None
    try:
        return len(visible_gpus(node, environ))
    except DeviceError:
        return None


def _masked(shown: Sequence[Gpu], mask: str, text: str) -> list[Gpu]:
    found: list[Gpu] = []
    entries = entries_of(text)
    names: dict[Gpu, str] = {}  # entry of each whole GPU; several entries may name parts of one GPU
    for place, entry in enumerate(entries):
        if entry in entries[:place]:
            raise DeviceError(f"{mask}={text} names {entry} twice")
        found += _of_entry(shown, mask, entry)
        whole = not entry.startswith("MIG-") and "." not in entry
        if whole and (before := names.setdefault(found[-1], entry)) != entry:
            raise DeviceError(f"{mask}={text} names one GPU as {before} and as {entry}")
    return found


def _of_entry(shown: Sequence[Gpu], mask: str, entry: str) -> list[Gpu]:
    if entry.isdecimal():
        if int(entry) < len(shown):
            return [shown[int(entry)]]
        may_use = f"this process may use {plural(len(shown), 'GPU')} here"
        raise DeviceError(f"{mask} names GPU {entry}, and {may_use}")
    if match := re.fullmatch(r"(\d+)\.(\d+)", entry):
        cards = list(dict.fromkeys(gpu.address for gpu in shown))
        at = [gpu for gpu in shown if cards.index(gpu.address) == int(match[1]) and gpu.tile in (int(match[2]), None)]
    elif entry.startswith("MIG-GPU-"):  # MIG-GPU-UUID/INSTANCE/INSTANCE, of drivers before 470
        at = [gpu for gpu in shown if gpu.uuid and entry[4:].partition("/")[0] == gpu.uuid]
    elif entry.startswith("MIG-"):
        address = hardware.parent_of_slice(entry)
        if address is None:
            text = f"{mask} names {entry}, a MIG instance: only NVIDIA's library can tell which GPU it is on"
            raise DeviceError(text)
        at = [gpu for gpu in shown if gpu.address == address]
    else:
        at = [gpu for gpu in shown if gpu.uuid.startswith(entry)]
    if len(at) != 1:
        text = f"{mask} names {entry}, and no GPU here is that: it is gone, or not this job's"
        raise DeviceError(text)
    return at


def _nearest(node: Node, gpu: Gpu | None) -> Nic | None:
    # Accelerators of the same NUMA node get different network devices if there are several
    if gpu is None or gpu.numa is None:
        return None
    fastest = max((nic.speed for nic in node.nics), default=0)
    there = [nic for nic in node.nics if nic.numa == gpu.numa and nic.speed == fastest]
    on_same_numa = [each for each in node.gpus if each.numa == gpu.numa]
    return there[on_same_numa.index(gpu) * len(there) // len(on_same_numa)] if there else None
