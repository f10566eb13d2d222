"""The public face in a rank: `init` makes the process group, `report` and `progress` tell the run how it goes."""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.node import pulse, topology
from launcher.node.events import Reporter, current_attempt
from launcher.node.rendezvous import Member, RendezvousError, meet
from launcher.worker.torch_compat import destroy_without_gil

PORTS = (20000, 32767)  # for init() outside of a run; below Linux's ephemeral ports


class BackendError(RuntimeError):
    """The backend or the device that was asked for cannot be had here."""


@dataclass(frozen=True)
class Env:
    """This rank's place and means.

    Attributes:
        rank, local_rank, world_size, local_world_size, node_rank, nnodes: as torch.distributed uses them.
        hosts: host name of each node rank (empty where nobody tells).
        host: this rank's host.
        backend: gloo, nccl or mpi.
        device: where this rank's tensors belong.
        source: what the ranks were derived from.
        node_ranks: node rank of each rank.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    nnodes: int
    hosts: tuple[str, ...]
    host: str
    backend: str
    device: torch.device
    source: str
    node_ranks: tuple[int, ...]

    def node_of(self, rank: int) -> int:
        """The node rank of another rank."""
        return self.node_ranks[rank]


_reporter: Reporter | None = None
_env: Env | None = None


def _told() -> Reporter:
    """Where this process tells how it goes; a program finds its run and its rank in its environment."""
    global _reporter
    if _reporter is None:
        _reporter = Reporter(current_attempt(), int(os.environ.get("RANK", "0")))
    return _reporter


def report(**metrics: object) -> None:
    """Adds metrics to the run's result (rank 0's count; JSON types)."""
    _told().report(**metrics)


def progress(step: int, total: int, **values: object) -> None:
    """Shows how far the work is; call it on rank 0 as often as you like."""
    if (slot := pulse.mine()) is not None:
        slot.progress(step)
    _told().progress(step, total, **values)


def evaluated(step: int, **values: object) -> None:
    """Notes what an evaluation after `step` steps has come to (rank 0's count; JSON types)."""
    _told().evaluated(step, **values)


def run_dir() -> Path | None:
    """The run's directory; None outside of a run."""
    attempt = current_attempt()
    return attempt.run.path if attempt else None


def rank_zero() -> bool:
    """Whether this is rank 0; without a process group RANK says so, and without that there is one rank only."""
    return dist.get_rank() == 0 if dist.is_initialized() else os.environ.get("RANK", "0") == "0"


def init(backend: str = "auto", device: str = "auto", *, rendezvous_timeout: float = 300, timeout: float = 1800) -> Env:
    """Makes the default process group for whatever started this process, or takes the one that is there.

    Under our agent and under torchrun the ranks use the store that is there. Elsewhere (srun, mpiexec, pbsdsh, or a
    bare `python script.py`) rank 0 makes one on a port of its own choice, which the others find and verify.

    Args:
        backend: auto (nccl on GPUs, else gloo), gloo, nccl or mpi.
        device: auto (a GPU when there is one), cpu or cuda.
        rendezvous_timeout: seconds until all ranks must have joined.
        timeout: seconds that a collective may take.

    Raises:
        TopologyError: the environment tells only a part of this rank's place.
        RendezvousError: not all ranks joined in time; it names the missing ones.
        BackendError: the backend or the device cannot be had here.
    """
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    chosen_device = _device(device, place)
    chosen_backend = dist.get_backend() if dist.is_initialized() else _backend(backend, chosen_device)
    if dist.is_initialized():
        pass
    elif chosen_backend == "mpi":
        dist.init_process_group("mpi")
    else:
        store = _store(place, host, rendezvous_timeout)
        _join(store, place, host, rendezvous_timeout)
        dist.init_process_group(
            chosen_backend,
            store=dist.PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout),
            device_id=chosen_device if chosen_device.type == "cuda" else None,
        )
        destroy_without_gil(dist.group.WORLD)
    atexit.register(close)  # one run without it aborted at exit
    global _reporter, _env
    _reporter = Reporter(current_attempt(), place.rank)
    node_ranks = _node_ranks(place)
    here = place.hosts[place.node_rank] if place.hosts else host
    _env = Env(
        place.rank, place.local_rank, place.world_size, place.local_world_size, place.node_rank, place.nnodes,
        place.hosts, here, chosen_backend, chosen_device, place.source, node_ranks,
    )  # fmt: skip
    return _env


def close() -> None:
    """Destroys the process group if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(wanted: str, place: topology.Topology) -> torch.device:
    there = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise BackendError(
            "device=cuda, and this rank sees no GPU: ask for gpus_per_node=..., or use workload.device=cpu"
        )
    if not there:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_world_size > count and count > 1:
        raise BackendError(
            f"{place.local_world_size} ranks on a node with {count} GPUs: "
            f"use procs_per_node={count} or workload.device=cpu"
        )
    device = torch.device("cuda", place.local_rank % count)  # srun may show each task its own GPU alone
    torch.cuda.set_device(device)
    return device


def _backend(wanted: str, device: torch.device) -> str:
    name = wanted if wanted != "auto" else "nccl" if device.type == "cuda" else "gloo"
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available() and torch.cuda.is_available(),
        "mpi": dist.is_mpi_available(),
    }
    if name not in available:
        raise BackendError(f"backend={name}: it must be auto, {', '.join(available)}")
    if not available[name]:
        can = ", ".join(backend for backend, there in available.items() if there)
        why = {
            "mpi": "this torch was built without MPI (build it from source with an MPI in sight)",
            "nccl": "nccl needs a GPU and a torch built with CUDA",
            "gloo": "this torch was built without gloo",
        }[name]
        raise BackendError(f"backend={name}: {why}; here you can use {can}")
    return name


def _store(place: topology.Topology, host: str, timeout: float) -> dist.Store:
    """The store that the ranks share."""
    if place.master_port is not None:
        patience = timedelta(seconds=timeout)
        # Under an elastic agent the store is the agent's; elsewhere MASTER_PORT is rank 0's to bind.
        ours = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = dist.TCPStore(place.master, place.master_port, is_master=ours, timeout=patience, wait_for_workers=False)
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"ranks/{restart}", store)
    if place.world_size == 1:
        _use_interface("lo")
        return dist.HashStore()
    names = tuple(f"rank {rank}" for rank in range(place.world_size))
    meeting = meet(
        Member(place.rank, place.node_rank, host, 1, place.local_rank),
        size=place.world_size,
        least=place.world_size,
        expected=names,
        master=place.master,
        key=f"{os.getuid()}/{place.job}",
        port_range=PORTS,
        timeout=timeout,
    )
    _use_interface(meeting.interface)
    return dist.PrefixStore("ranks", meeting.store)


def _use_interface(name: str | None) -> None:
    """gloo takes the address that the host's name resolves to, which on many nodes is 127.0.1.1."""
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _join(store: dist.Store, place: topology.Topology, host: str, timeout: float) -> None:
    """Waits for all ranks, so that one that hangs before this point is named and not merely missed."""
    store.set(f"joined/{place.rank}", host)
    if store.add("joined", 1) == place.world_size:
        store.set("all joined", "1")
    try:
        store.wait(["all joined"], timedelta(seconds=timeout))
    except dist.DistStoreError:
        missing = [rank for rank in range(place.world_size) if not store.check([f"joined/{rank}"])]
        raise RendezvousError(
            f"rank {', '.join(map(str, missing))} did not join within {timeout:g} s"
            + (f" (on {', '.join(_hosts_of(place, missing))})" if place.hosts else "")
            + ": does it hang before init()?"
        ) from None


def _hosts_of(place: topology.Topology, ranks: list[int]) -> list[str]:
    node_ranks = _node_ranks(place)
    return sorted({place.hosts[node_ranks[rank]] for rank in ranks})


def _node_ranks(place: topology.Topology) -> tuple[int, ...]:
    """Ranks fill nodes in order: true of our agent and of every launcher's default."""
    return tuple(min(rank // place.local_world_size, place.nnodes - 1) for rank in range(place.world_size))
