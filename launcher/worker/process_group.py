"""The process group of the ranks: makes it, tells who is missing, and sends objects through it.

Every rank writes its facts into the store. The last rank to do so reads and compares all of them, and writes the
refusals, if any, which every rank reads. So requests and bytes grow linearly with the number of ranks, not with its
square.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import hmac
import itertools
import json
import os
import pickle
import socket
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from launcher import processes
from launcher.failures.codes import FaultCode
from launcher.files.folder_checks import SECRET_VARIABLE, secret_of_user
from launcher.formatting import name_ranks, plural
from launcher.rendezvous.rounds import Member, RendezvousError, candidate_ports, join_rendezvous, secret_of
from launcher.runs.directory import current_attempt
from launcher.runs.events import Accused, Fault, Place
from launcher.schedulers import topology
from launcher.torch_compat import destroy_without_gil, store_on
from launcher.worker import devices, heartbeat
from launcher.worker.devices import BackendError, NoGpuError
from launcher.worker.tracking import Reporter

_SHOWN = 4  # an error lists at most so many values, and so many hosts of each


class RanksDiffer(BackendError):
    """The ranks cannot work together, since they differ; the text says which ranks have which values."""


@dataclass(frozen=True)
class RankFacts:
    rank: int
    host: str
    device: str
    gpu: str  # an id of the rank's GPU that is unique among all nodes; empty: unknown, or the rank computes on the CPU
    backend: str
    torch: str  # torch, git: version of torch, and the commit that it was built from
    git: str
    nccl: str  # version of NCCL; empty with other backends
    node: int | None = None  # rank of the rank's node; None: unknown


def _refusal(what: str, holders: Iterable[tuple[str, tuple[RankFacts, ...]]], fix: str) -> str:
    # holders: the values, each with the ranks that have it
    shown = [f"{value or 'none'} on {_who(ranks)}" for value, ranks in holders]
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"and {len(shown) - _SHOWN} more"]
    return f"{what}: {'; '.join(shown)}. {fix}"


def _who(ranks: Sequence[RankFacts]) -> str:
    hosts = list(dict.fromkeys(each.host for each in ranks))
    more = f" and {plural(len(hosts) - _SHOWN, 'more node')}" if len(hosts) > _SHOWN else ""
    shown = ", ".join(hosts[:_SHOWN]) + more
    return f"{name_ranks(each.rank for each in ranks)} ({shown})"


_SAME_SOFTWARE = "Give all nodes the same environment (env.activate, env.archive, env.container, cluster.setup)"


def compare(facts: Sequence[RankFacts]) -> list[str]:
    """Returns why these ranks cannot work together: they differ, or two use one GPU (a MIG slice counts as one)."""
    refusals = []
    versions = _by(facts, "torch")
    for name, what, fix in (
        ("device", "The ranks have different devices", "See what `nvidia-smi` says there, or set workload.device"),
        ("backend", "The ranks have different backends", "Set workload.backend"),
        ("torch", "The ranks have different versions of torch", _SAME_SOFTWARE),
        ("git", "The ranks have torch of the same version, built from different commits", _SAME_SOFTWARE),
        ("nccl", "The ranks have different versions of NCCL", _SAME_SOFTWARE),
    ):
        holders = _by(facts, name)
        if len(holders) > 1 and not (name == "git" and len(versions) > 1):
            refusals.append(_refusal(what, sorted(holders.items(), key=lambda each: -len(each[1])), fix))
    shared = {gpu: ranks for gpu, ranks in _by(facts, "gpu").items() if gpu and len(ranks) > 1}
    if shared:
        fix = "Use as many ranks as GPUs: procs_per_node equal to gpus_per_node"
        refusals.append(_refusal("Several ranks use one GPU", shared.items(), fix))
    return refusals


def _by(facts: Iterable[RankFacts], name: str) -> dict[str, tuple[RankFacts, ...]]:
    found: dict[str, list[RankFacts]] = {}
    for each in facts:
        found.setdefault(getattr(each, name), []).append(each)
    return {value: tuple(ranks) for value, ranks in found.items()}


def facts_of(rank: int, host: str, device: torch.device, backend: str, environ: Mapping[str, str]) -> RankFacts:
    gpu = ""
    if device.type != "cpu":
        properties = getattr(torch, device.type).get_device_properties(device)
        index = device.index or 0
        if device.type == "xpu":
            gpu = xpu_identity(index, environ.get("ZE_AFFINITY_MASK", ""), host)
        else:
            gpu = gpu_identity(properties, index, environ.get("CUDA_VISIBLE_DEVICES", ""), host)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else ""
    git = str(getattr(torch.version, "git_version", None) or "")
    return RankFacts(rank, host, device.type, gpu, backend, torch.__version__, git, nccl)


def gpu_identity(properties: Any, index: int, mask: str, host: str) -> str:
    """Returns a GPU's id, which no other GPU on any node has; empty: unknown."""
    entries = [entry.strip() for entry in mask.split(",")]
    if index < len(entries) and entries[index].startswith("MIG-"):  # with some drivers its UUID is the whole GPU's
        return entries[index]
    if uuid := str(getattr(properties, "uuid", "") or ""):
        return uuid
    address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if address[1] is None:
        return ""
    return f"{host} PCI " + ":".join(f"{part or 0:x}" for part in address)


def xpu_identity(index: int, mask: str, host: str) -> str:
    """Returns an id of an XPU among all nodes: the host, and its entry in ZE_AFFINITY_MASK (tiles share a UUID)."""
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    return f"{host} XPU {entries[index] if index < len(entries) else index}"


def require_alike_in_group(facts: RankFacts) -> None:
    """Compares all ranks through their process group, for MPI, which has no store; raises RanksDiffer on all."""
    _require_none(broadcast(compare(gather(facts))))


def _require_none(refused: Sequence[str]) -> None:
    if refused:
        raise RanksDiffer(" ".join(f"{text}." for text in refused))


# -- The public API in a rank: `init` makes the process group; `progress`, `evaluated` and `report` report to the run


LOOKING = 60.0  # seconds for which ranks that waited in vain wait for the names of those that are missing
AFTER_AGENTS = 5.0  # seconds by which ranks wait longer than their agents, which name the missing ones
PORTS = (20000, 32767)  # for init() outside of a run; below Linux's ephemeral ports


@dataclass(frozen=True)
class Env:
    """This rank's position in the job, its device and its backend. `init` returns it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    nnodes: int
    hosts: tuple[str, ...]  # host name of each node, by node rank; empty: unknown
    host: str  # name of this rank's host
    backend: str  # of the process group: gloo, nccl, xccl or mpi
    device: torch.device  # for this rank's tensors
    source: str  # whose environment variables the ranks were derived from, such as `srun`; see `schedulers.topology`
    node_ranks: tuple[int, ...]  # of each rank

    def node_of(self, rank: int) -> int:
        return self.node_ranks[rank]


_reporter: Reporter | None = None
_has_progress = False  # whether the program calls `progress`
_env: Env | None = None


def reporter() -> Reporter:
    """Returns this process's reporter, which takes values of any name: callbacks do not choose those of metrics."""
    global _reporter
    if _reporter is None:
        _reporter = _new_reporter(int(os.environ.get("RANK", "0")))
    return _reporter


def _new_reporter(rank: int) -> Reporter:
    made = Reporter(current_attempt(), rank)
    atexit.register(made.finish)
    return made


def report(**metrics: object) -> None:
    """Adds metrics (JSON types) to the run's result. Calls on ranks other than 0 do nothing."""
    reporter().report(metrics)


def progress(step: int, total: int, **values: object) -> None:
    """Reports how far the work is. Call it on rank 0; it is cheap enough for every step.

    Args:
        step: steps of the run that are done.
        total: steps of the whole run; 0 if unknown.
        values: other values of this step (JSON types), such as the loss.
    """
    report_progress(step, total, values)


def report_progress(step: int, total: int, values: Mapping[str, object]) -> None:
    """Like `progress`, with values of any name."""
    global _has_progress
    _has_progress = True
    if (slot := heartbeat.mine()) is not None:
        slot.progress(step)
    reporter().progress(step, total, values)


def report_step(step: int) -> None:
    """Reports the number of steps done, unless the program has called `progress`, which also reports the total."""
    if not _has_progress:
        reporter().progress(step, total=0)


def evaluated(step: int, **values: object) -> None:
    """Reports the result of an evaluation. Calls on ranks other than 0 do nothing.

    Args:
        step: steps of the run that are done.
        values: the result (JSON types), such as the accuracy.
    """
    reporter().evaluated(step, values)


def run_dir() -> Path | None:
    """Returns the run directory; None outside of a run."""
    attempt = current_attempt()
    return attempt.run.path if attempt else None


def rank_zero() -> bool:
    """Returns whether this is rank 0, by the process group or, without one, by RANK; True if neither exists."""
    return dist.get_rank() == 0 if dist.is_initialized() else os.environ.get("RANK", "0") == "0"


def init(backend: str = "auto", device: str = "auto", *, rendezvous_timeout: float = 300, timeout: float = 1800) -> Env:
    """Makes the default process group, however this process was started, or uses the existing one.

    Under this launcher's agent and under torchrun the ranks use the store that is already there. Elsewhere (srun,
    mpiexec, pbsdsh, or a plain `python script.py`) rank 0 serves one that the other ranks find and verify.

    Args:
        backend: auto (nccl on GPUs, xccl on XPUs, else gloo), gloo, nccl, xccl or mpi.
        device: auto (in a run with gpus_per_node > 0 a GPU, elsewhere a GPU if there is one), cpu, cuda or xpu.
        rendezvous_timeout: seconds until all ranks must have joined.
        timeout: seconds for each collective.

    Raises:
        TopologyError: the environment variables of the job are incomplete, or contradict each other.
        RendezvousError: not all ranks joined in time; the text names the missing ones.
        BackendError: the backend or device is not available here, or the ranks differ.
    """
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    chosen_device = _device(device, place, host)
    chosen_backend = dist.get_backend() if dist.is_initialized() else _backend(backend, chosen_device)
    nodes: topology.Nodes | None = None
    node, name = _node_of(place, host)
    if not dist.is_initialized():
        facts = facts_of(place.rank, host, chosen_device, chosen_backend, os.environ)
        facts = replace(facts, host=name, node=node)  # simulated nodes share a host, and its GPUs
        nodes = _make_group(place, facts, chosen_device, rendezvous_timeout, timeout)
    atexit.register(close)  # without this, processes were seen to abort at exit
    global _reporter, _env
    if _reporter is None or (_env is None and "RANK" not in os.environ):  # else it has what was reported before
        _reporter = _new_reporter(place.rank)
    if nodes is None:
        everyone = all_gather((node, name)) if dist.get_world_size() > 1 else [(0, host)]
        nodes = topology.assign_nodes(everyone, place.hosts)
    node_rank = nodes.of_ranks[place.rank]
    _env = Env(
        place.rank, place.local_rank, place.world_size, place.local_world_size, node_rank, len(nodes.hosts),
        nodes.hosts, nodes.hosts[node_rank], chosen_backend, chosen_device, place.source, nodes.of_ranks,
    )  # fmt: skip
    return _env


def here() -> Env:
    """Returns this rank's position in the process group, also if the program made the group without `init`."""
    if _env is not None and dist.is_initialized():
        return _env
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    alone = not dist.is_initialized()
    world = 1 if alone else dist.get_world_size()
    # Empty if the environment describes more or fewer ranks than this group has.
    node_ranks = topology.nodes_in_order(place) if world == place.world_size else ()
    return Env(
        rank=place.rank if alone else dist.get_rank(), local_rank=place.local_rank, world_size=world,
        local_world_size=place.local_world_size, node_rank=place.node_rank, nnodes=place.nnodes,
        hosts=place.hosts if node_ranks else (), host=place.hosts[place.node_rank] if place.hosts else host,
        backend="none" if alone else dist.get_backend(), device=devices.current(), source=place.source,
        node_ranks=node_ranks,
    )  # fmt: skip


def _make_group(
    place: topology.Topology, facts: RankFacts, device: torch.device, rendezvous_timeout: float, timeout: float
) -> topology.Nodes | None:
    if facts.backend == "mpi":
        dist.init_process_group("mpi")
        require_alike_in_group(facts)
        return None
    store = _store(place, socket.gethostname(), rendezvous_timeout)
    slot = heartbeat.mine()
    if slot is not None:
        slot.arrive()
    nodes = _join(store, place, facts, rendezvous_timeout, 0.0 if slot is None else AFTER_AGENTS)
    if slot is not None:
        slot.join()
    start(facts.backend, store, place.rank, place.world_size, device, timeout)
    if facts.backend == "gloo":
        dist.barrier()  # a rank that ended at once would end others, which may still connect to it
    return nodes


def start(backend: str, store: dist.Store, rank: int, world_size: int, device: torch.device, timeout: float) -> None:
    """Makes the process group; timeout: seconds for a collective. RuntimeError: ranks cannot be reached."""
    processes.allow_files(world_size)
    dist.init_process_group(
        backend, store=dist.PrefixStore("group", store), rank=rank, world_size=world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if backend == "nccl" else None,  # with an XPU's torch makes no gloo group beside it
    )  # fmt: skip
    destroy_without_gil(dist.group.WORLD)


def gloo_group(ranks: int, timeout: float | None) -> dist.ProcessGroup:
    """Makes one more group, of all ranks, which all call it; timeout: seconds for a collective, None: as torch."""
    processes.allow_files(ranks)  # a connection to each other rank
    group = dist.new_group(backend="gloo", timeout=None if timeout is None else timedelta(seconds=timeout))
    destroy_without_gil(group)
    return cast(dist.ProcessGroup, group)


def close() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(wanted: str, place: topology.Topology, host: str) -> torch.device:
    kind, index = devices.choose_device(
        wanted, int(os.environ.get(devices.ASKED, "0")), devices.find_accelerators(os.environ),
        rank=place.rank, local_rank=place.local_rank, ranks=place.local_world_size, host=host,
    )  # fmt: skip
    if index is None:
        return torch.device(kind)
    device = torch.device(kind, index)
    getattr(torch, kind).set_device(device)  # or a DeviceMesh would use the one with the number LOCAL_RANK
    return device


def _backend(wanted: str, device: torch.device) -> str:
    available: dict[str, Callable[[], bool]] = {  # torch.cuda.is_available initialises CUDA: no fork could use it then
        "gloo": dist.is_gloo_available,
        "nccl": lambda: dist.is_nccl_available() and torch.cuda.is_available(),
        "xccl": lambda: getattr(dist, "is_xccl_available", bool)() and torch.xpu.is_available(),
        "mpi": dist.is_mpi_available,
    }
    name = wanted
    if wanted == "auto":
        name = devices.BACKENDS.get(device.type, "")
        if not name:  # another accelerator, for which torch may know a backend
            default = getattr(dist, "get_default_backend_for_device", None)
            return str(default(device)) if default else "gloo"
    if name not in available:
        raise BackendError(f"backend={name}: it must be auto, {', '.join(available)}")
    if not available[name]():
        can = ", ".join(backend for backend, there in available.items() if there())
        why = {
            "mpi": "this torch was built without MPI (build it from source with an MPI in sight)",
            "nccl": "nccl needs a GPU and a torch built with CUDA",
            "xccl": "xccl needs an XPU and a torch built with it, which those for XPU are since 2.8",
            "gloo": "this torch was built without gloo",
        }[name]
        error = NoGpuError if name in ("nccl", "xccl") else BackendError
        raise error(f"backend={name}: {why}; here you can use {can}")
    if devices.ON_STREAM.get(name, device.type) != device.type:
        raise BackendError(f"backend={name} sends what is on a GPU, and device={device.type}: use gloo, or set device")
    return name


def _store(place: topology.Topology, host: str, timeout: float) -> dist.Store:
    if place.master_port is not None:
        limit = timedelta(seconds=timeout)
        # An elastic agent serves the store itself; elsewhere rank 0 must bind MASTER_PORT.
        serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = dist.TCPStore(place.master, place.master_port, is_master=serves, timeout=limit, wait_for_workers=False)
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"ranks/{restart}", store)
    if place.world_size == 1:
        _use_interface("lo")
        return dist.HashStore()
    secret = secret_of(secret_of_user(), f"{os.getuid()}/{place.job}")
    rendezvous = join_rendezvous(
        Member(place.rank, place.node_rank, host, 1, place.local_rank), places=_places(place, host),
        master=place.master, secret=secret, ports=candidate_ports(secret, PORTS), timeout=timeout,
    )  # fmt: skip
    _use_interface(rendezvous.interface)
    limit = timedelta(seconds=timeout)
    if rendezvous.listener is not None:
        # Without the gate of `rendezvous.store`: code that holds this process's GIL would block all other ranks.
        return dist.PrefixStore("ranks", store_on(rendezvous.listener, rendezvous.host, limit))
    client = dist.TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=limit, wait_for_workers=False)
    return dist.PrefixStore("ranks", client)


def _use_interface(name: str | None) -> None:
    # Sets gloo's network interface unless the user has. Its default is the host name's address, often 127.0.1.1.
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _join(
    store: dist.Store, place: topology.Topology, facts: RankFacts, timeout: float, longer: float = 0.0
) -> topology.Nodes:  # fmt: skip
    # The last rank compares the facts of all, and writes the result. Unlike torch's timeout, the error names the
    # missing ranks
    store.set(f"joined/{facts.rank}", json.dumps(asdict(facts)))
    if store.add("joined", 1) == place.world_size:
        all_of_them = store.multi_get([f"joined/{rank}" for rank in range(place.world_size)])
        found = [RankFacts(**json.loads(each)) for each in all_of_them]
        nodes = topology.assign_nodes([(each.node, each.host) for each in found], place.hosts)
        # Compressed, it is an 18th: 10 GB less for 32,768 ranks
        answer = zlib.compress(json.dumps([compare(found), nodes.of_ranks, nodes.hosts]).encode())
        store.set("all joined", answer)  # type: ignore[arg-type]  # torch's type says str, and takes bytes
    try:
        store.wait(["all joined"], timedelta(seconds=timeout + longer))
    except dist.DistStoreError:
        if store.add("late", 1) == 1:  # one rank looks for all others: the store answers one request at a time
            absent = [rank for rank in range(place.world_size) if not store.check([f"joined/{rank}"])]
            store.set("missing", json.dumps(absent))
        with contextlib.suppress(dist.DistStoreError):
            store.wait(["missing"], timedelta(seconds=LOOKING))
        missing = json.loads(store.get("missing")) if store.check(["missing"]) else []
        places = _places(place, "")
        accused = tuple(Accused(host=places[rank].host, rank=rank) for rank in missing)
        raise RendezvousError(Fault(code=FaultCode.NOT_JOINED, accused=accused, seconds=float(timeout))) from None
    refused, of_ranks, hosts = json.loads(zlib.decompress(store.get("all joined")))
    _require_none(refused)
    return topology.Nodes(tuple(of_ranks), tuple(hosts))


def _places(place: topology.Topology, own: str) -> list[Place]:
    node_ranks = topology.nodes_in_order(place) if place.hosts else ()
    hosts = [place.hosts[node] for node in node_ranks] or [""] * place.world_size
    hosts[place.rank] = hosts[place.rank] or own
    return [Place(host=host, node=0, task=rank) for rank, host in enumerate(hosts)]


def _node_of(place: topology.Topology, host: str) -> tuple[int | None, str]:
    if place.world_size == 1:
        return 0, host
    known = place.hosts[place.node_rank] if place.node_known and place.hosts else host
    return place.node_rank if place.node_known else None, known


# -- Objects that ranks send each other, as pickles with a MAC
#
# Gloo accepts whoever connects as a rank (docs/security.md), and unpickling executes what the sender chose. So these
# functions, instead of torch's `all_gather_object` and the like, unpickle only data with a MAC made with the secret
# that the ranks of a job share. All ranks of `group` (None: the default group) must call the same function.


MAC = hashlib.sha256().digest_size  # bytes
SMALL = 1 << 10  # bytes; a broadcast up to this size is one message
HEAD = 192  # bytes of the first message of a gather; most values are smaller, and need no second one
LENGTH = 8  # bytes of the length at the start of a message
FEW = 64  # most ranks whose values are sent one after the other

T = TypeVar("T")
_broadcasts = itertools.count()  # numbers those by the store; all ranks make them in the same order


class NotFromARank(RuntimeError):
    """Received data has no valid MAC, so it was not sent by a rank of this job."""


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Like `all_gather`, but returns [] on all ranks but rank 0."""
    return all_gather(value, group, on_first=True)


def all_gather(value: T, group: dist.ProcessGroup | None = None, *, on_first: bool = False) -> list[T]:
    """Returns the ranks' values in order, on every rank; raises NotFromARank for a wrong MAC."""
    heads, rest, sizes = _heads(value, group)
    here = not on_first or dist.get_rank() == 0
    rests = _one_by_one(rest, sizes, group, keep=here)
    if rests is None:
        rests = [torch.empty_like(rest) for _ in sizes] if here else []
        if on_first:
            dist.gather(rest, rests or None, dst=0, group=group)
        else:
            dist.all_gather(rests, rest, group=group)
    parts = zip(heads, rests, sizes, strict=True) if here else ()
    return [_open((head + _bytes(more))[:size]) for head, more, size in parts]


def broadcast(value: T | None, group: dist.ProcessGroup | None = None, timeout: float = 1800) -> T:
    """Returns rank 0's value on every rank, a small one in one message; raises NotFromARank for a wrong MAC.

    Before there is a process group, which the program may make as it likes, it goes through the store of the round's
    agents; rank 0 then waits for nobody, and others for `timeout` seconds.
    """
    if not dist.is_initialized():
        return _broadcast_by_store(value, timeout)
    device = _device_of(group)
    sealed = _seal(value) if dist.get_rank() == 0 else b""
    head = _tensor(len(sealed).to_bytes(LENGTH, "big") + sealed[: SMALL - LENGTH], SMALL, device)
    dist.broadcast(head, src=0, group=group)
    data = _bytes(head)
    size = int.from_bytes(data[:LENGTH], "big")
    if size > SMALL - LENGTH:
        rest = _tensor(sealed[SMALL - LENGTH :], size - (SMALL - LENGTH), device)
        dist.broadcast(rest, src=0, group=group)
        data += _bytes(rest)
    return cast(T, _open(data[LENGTH : LENGTH + size]))


def _broadcast_by_store(value: T | None, timeout: float) -> T:
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    store, key = _store(place, host, timeout), f"broadcast/{next(_broadcasts)}"
    if place.rank == 0:
        store.set(key, _seal(value).hex())
    return _open(bytes.fromhex(store.get(key).decode()))


def _heads(value: object, group: dist.ProcessGroup | None) -> tuple[list[bytes], Tensor, list[int]]:
    # Returns the beginnings of all ranks' values, the rest of this rank's, as long as the longest, and all sizes
    device, sealed = _device_of(group), _seal(value)
    data = len(sealed).to_bytes(LENGTH, "big") + sealed
    mine = _tensor(data[:HEAD], HEAD, device)
    received = torch.empty(dist.get_world_size(group) * HEAD, dtype=torch.uint8, device=device)
    dist.all_gather([*received.split(HEAD)], mine, group=group)
    whole = _bytes(received)  # one copy from the GPU
    heads = [whole[start : start + HEAD] for start in range(0, len(whole), HEAD)]
    sizes = [int.from_bytes(head[:LENGTH], "big") for head in heads]
    return [head[LENGTH:] for head in heads], _tensor(data[HEAD:], max(0, LENGTH + max(sizes) - HEAD), device), sizes


def _one_by_one(
    rest: Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None, *, keep: bool
) -> list[Tensor] | None:  # fmt: skip
    # Returns what follows each rank's first message, if few ranks have something; else None. A collective of all would
    # take the longest value times the number of ranks: 5 GiB on a node of 4,096 ranks if one has 150 KiB.
    left = [max(0, LENGTH + size - HEAD) for size in sizes]
    holders = [rank for rank, length in enumerate(left) if length]
    if len(holders) > min(FEW, len(sizes) // 4):
        return None
    rests = [rest[:0] for _ in sizes]
    for rank in holders:
        mine = rank == dist.get_rank(group)
        received = rest[: left[rank]] if mine else torch.empty(left[rank], dtype=torch.uint8, device=rest.device)
        dist.broadcast(received, src=rank if group is None else dist.get_global_rank(group, rank), group=group)
        rests[rank] = received if keep else rest[:0]
    return rests


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    return devices.of_backend(dist.get_backend(group))


def _tensor(data: bytes, size: int, device: torch.device) -> Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8).to(device)


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _seal(value: object) -> bytes:
    data = pickle.dumps(value)
    return _mac(data) + data


def _open(sealed: bytes) -> T:  # type: ignore[type-var]  # the sender's value may have any type
    if not hmac.compare_digest(sealed[:MAC], _mac(sealed[MAC:])):
        raise NotFromARank(
            "an object that another rank should have sent does not carry the secret of this job's ranks. Outside of a "
            f"run, set {SECRET_VARIABLE} to the same random text on all ranks, unless they share the home folder"
        )
    return cast(T, pickle.loads(sealed[MAC:]))  # noqa: S301  # made by a rank of this job


def _mac(data: bytes) -> bytes:
    return hmac.new(_secret(), b"launcher ranks\0" + data, hashlib.sha256).digest()


@cache
def _secret() -> bytes:
    attempt = current_attempt()
    return attempt.run.secret() if attempt else secret_of_user()
