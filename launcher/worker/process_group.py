"""The public face in a rank: `init` makes the process group, `report` and `progress` tell the run how it goes."""

from __future__ import annotations

import atexit
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.files import shared_secret
from launcher.formatting import name_ranks
from launcher.rendezvous import protocol
from launcher.rendezvous.protocol import Member, RendezvousError, meet
from launcher.runs.event_writer import current_attempt
from launcher.schedulers import topology
from launcher.torch_compat import destroy_without_gil, store_on
from launcher.worker import devices, heartbeat, joining, rank_objects
from launcher.worker.devices import BackendError
from launcher.worker.reporter import Reporter

PORTS = (20000, 32767)  # for init() outside of a run; below Linux's ephemeral ports


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
_tells_progress = False  # the program says itself how far it is
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
    global _tells_progress
    _tells_progress = True
    if (slot := heartbeat.mine()) is not None:
        slot.progress(step)
    _told().progress(step, total, **values)


def passed(step: int) -> None:
    """So many steps of the run are done, of nobody knows how many; `progress` tells more."""
    if not _tells_progress:
        _told().progress(step, total=0)


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
        device: auto (in a run with gpus_per_node > 0 a GPU, elsewhere a GPU when there is one), cpu or cuda.
        rendezvous_timeout: seconds until all ranks must have joined.
        timeout: seconds that a collective may take.

    Raises:
        TopologyError: the environment tells only a part of this rank's place.
        RendezvousError: not all ranks joined in time; it names the missing ones.
        BackendError: the backend or the device cannot be had here, or the ranks differ in what they have.
    """
    host = socket.gethostname()
    place = topology.derive(os.environ, host, lambda path: Path(path).read_text())
    chosen_device = _device(device, place, host)
    chosen_backend = dist.get_backend() if dist.is_initialized() else _backend(backend, chosen_device)
    nodes: topology.Nodes | None = None
    if not dist.is_initialized():
        facts = joining.facts_of(place.rank, host, chosen_device, chosen_backend, os.environ)
        nodes = _make_group(place, facts, chosen_device, rendezvous_timeout, timeout)
    atexit.register(close)  # one run without it aborted at exit
    global _reporter, _env
    _reporter = Reporter(current_attempt(), place.rank)
    nodes = nodes or _nodes_by_group(place, host)
    node_rank = nodes.of_ranks[place.rank]
    _env = Env(
        place.rank, place.local_rank, place.world_size, place.local_world_size, node_rank, len(nodes.hosts),
        nodes.hosts, nodes.hosts[node_rank], chosen_backend, chosen_device, place.source, nodes.of_ranks,
    )  # fmt: skip
    return _env


def _make_group(
    place: topology.Topology, facts: joining.Facts, device: torch.device, rendezvous_timeout: float, timeout: float
) -> topology.Nodes | None:
    """Makes the default process group, of ranks that can work together; their nodes, where a store tells them."""
    if facts.backend == "mpi":
        dist.init_process_group("mpi")
        joining.require_alike_in_group(facts)
        return None
    store = _store(place, facts.host, rendezvous_timeout)
    slot = heartbeat.mine()
    if slot is not None:
        slot.arrive()
    _join(store, place, facts, rendezvous_timeout)
    nodes = _nodes(store, place, facts.host)
    if slot is not None:
        slot.join()
    dist.init_process_group(
        facts.backend,
        store=dist.PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device if device.type != "cpu" and facts.backend != "gloo" else None,
    )
    destroy_without_gil(dist.group.WORLD)
    return nodes


def close() -> None:
    """Destroys the process group if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(wanted: str, place: topology.Topology, host: str) -> torch.device:
    """The device of this rank, which becomes the current one."""
    kind, index = devices.choose_device(
        wanted, int(os.environ.get(devices.ASKED, "0")), devices.look(os.environ),
        rank=place.rank, local_rank=place.local_rank, ranks=place.local_world_size, host=host,
    )  # fmt: skip
    if index is None:
        return torch.device(kind)
    device = torch.device(kind, index)
    getattr(torch, kind).set_device(device)  # else a DeviceMesh would take the one with the number LOCAL_RANK
    return device


def _backend(wanted: str, device: torch.device) -> str:
    available = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available() and torch.cuda.is_available(),
        "mpi": dist.is_mpi_available(),
    }
    name = wanted
    if wanted == "auto":
        name = {"cpu": "gloo", "cuda": "nccl"}.get(device.type, "")
        if not name:  # another accelerator, whose backend torch may know
            default = getattr(dist, "get_default_backend_for_device", None)
            return str(default(device)) if default else "gloo"
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
    secret = protocol.secret_of(shared_secret.of_user(), f"{os.getuid()}/{place.job}")
    meeting = meet(
        Member(place.rank, place.node_rank, host, 1, place.local_rank),
        names=[f"rank {rank}" for rank in range(place.world_size)],
        master=place.master,
        secret=secret,
        ports=protocol.candidate_ports(secret, PORTS),
        timeout=timeout,
    )
    _use_interface(meeting.interface)
    patience = timedelta(seconds=timeout)
    if meeting.listener is not None:
        # Without the gate of `agent.store`: what holds the interpreter in this process would hold up all other ranks.
        return dist.PrefixStore("ranks", store_on(meeting.listener, meeting.host, patience))
    client = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=patience, wait_for_workers=False)
    return dist.PrefixStore("ranks", client)


def _use_interface(name: str | None) -> None:
    """gloo takes the address that the host's name resolves to, which on many nodes is 127.0.1.1."""
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _join(store: dist.Store, place: topology.Topology, facts: joining.Facts, timeout: float) -> None:
    """Waits for all ranks, so that one that hangs before this point is named and not merely missed.

    Raises:
        RendezvousError: not all have joined in time.
        RanksDiffer: they cannot work together.
    """
    joining.tell(store, facts, place.world_size)
    try:
        store.wait(["all joined"], timedelta(seconds=timeout))
    except dist.DistStoreError:
        missing = [rank for rank in range(place.world_size) if not store.check([f"joined/{rank}"])]
        hosts = _hosts_of(place, missing)
        raise RendezvousError(
            f"{name_ranks(missing)} did not join within {timeout:g} s"
            + (f" (on {', '.join(hosts)})" if hosts else "")
            + ": does it hang before init()?"
        ) from None
    joining.require_alike(store)


def _hosts_of(place: topology.Topology, ranks: list[int]) -> list[str]:
    """The hosts of ranks that have not joined, where the environment tells; else none."""
    node_ranks = topology.in_order(place) if place.hosts else ()
    return sorted({place.hosts[node_ranks[rank]] for rank in ranks}) if node_ranks else []


def _nodes(store: dist.Store, place: topology.Topology, host: str) -> topology.Nodes:
    """Where all ranks are, as they tell each other. Rank 0 puts it together, so that each asks the store once."""
    if place.world_size == 1:
        return topology.numbered([(0, host)], place.hosts)
    store.set(f"node/{place.rank}", json.dumps(_told_of(place, host)))
    if place.rank == 0:
        told = store.multi_get([f"node/{rank}" for rank in range(place.world_size)])
        store.set("nodes", json.dumps(asdict(topology.numbered([json.loads(each) for each in told], place.hosts))))
    found = json.loads(store.get("nodes"))
    return topology.Nodes(tuple(found["of_ranks"]), tuple(found["hosts"]))


def _nodes_by_group(place: topology.Topology, host: str) -> topology.Nodes:
    """The same where there is no store of ours: MPI, and process groups that somebody else has made."""
    told = rank_objects.all_gather(_told_of(place, host)) if dist.get_world_size() > 1 else [(0, host)]
    return topology.numbered(told, place.hosts)


def _told_of(place: topology.Topology, host: str) -> tuple[int | None, str]:
    known = place.hosts[place.node_rank] if place.node_told and place.hosts else host
    return place.node_rank if place.node_told else None, known
