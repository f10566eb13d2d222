"""Derives this process's rank, world size and hosts from the variables of the command that started it."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from launcher import io_bounds
from launcher.errors import RunError
from launcher.fast_dataclasses import Struct, replace
from launcher.formatting import long_size

# -- Node lists: Slurm's (`rack[1-2]n[01-04,7]`) without scontrol, PBS node files, the variable LAUNCHER_HOSTS


VARIABLE = "LAUNCHER_HOSTS"
COMPRESSED = "zlib:"  # a list that begins with this is base64 of zlib


def expand(text: str) -> list[str]:
    """Returns the host names of a Slurm node list in its order; raises ValueError for a list that is not valid.

    A name may have several brackets; the leftmost one varies slowest. A zero-padded low bound (`01-10`) pads all.
    """
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]*\])*", text):
        raise ValueError(f"node list {text!r}: brackets do not match")
    hosts: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", name.strip())  # texts, and the ranges between them
        choices = [
            [number for item in part.split(",") for number in _range(item, text)] if place % 2 else [part]
            for place, part in enumerate(parts)
        ]
        hosts.extend(map("".join, product(*choices)))
    return [host for host in hosts if host]


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


def hosts_in_node_file(node_file: str) -> dict[str, int]:
    """Returns the distinct hosts of a PBS node file in order, each with the index of its first line (for pbsdsh -n)."""
    lines: dict[str, int] = {}
    for number, line in enumerate(node_file.splitlines()):
        if host := line.strip():  # a chunk without CPUs leaves an empty line
            lines.setdefault(host, number)
    return lines


def variable(hosts: Sequence[str]) -> dict[str, str]:
    """Returns LAUNCHER_HOSTS, compressed above io_bounds.HOSTS_BYTES; RunError: the kernel takes no such size."""
    text = ",".join(hosts)
    if len(text) > io_bounds.HOSTS_BYTES:
        text = COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
        if len(text) + len(f"{VARIABLE}=") > io_bounds.VARIABLE_BYTES:
            raise RunError(
                f"the names of {len(hosts):,} hosts take {long_size(len(text))}, and an environment variable has at "
                f"most {long_size(io_bounds.VARIABLE_BYTES)}: use fewer nodes"
            )
    return {VARIABLE: text}


def hosts_in(environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts in the variable LAUNCHER_HOSTS; [] if it is missing or empty."""
    text = environ.get(VARIABLE, "")
    if text.startswith(COMPRESSED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(COMPRESSED))).decode()
    return text.split(",") if text else []


# -- Derives this process's rank, world size and hosts from the variables of the command that started it
# A source is such a command (srun, torchrun, mpiexec): the first of SOURCES with all its variables. Without I/O


Environ = Mapping[str, str]


class TopologyError(RuntimeError): ...


class Topology(Struct):
    source: str  # key of SOURCES (`srun`), or `plain` for a single process without a source
    rank: int  # global rank
    local_rank: int  # rank among the processes of this node
    node_rank: int  # index of this node
    world_size: int  # number of processes
    local_world_size: int  # number of processes on this node
    nnodes: int  # number of nodes
    hosts: tuple[str, ...]  # host name of each node rank; empty if unknown
    master: str  # host of rank 0; empty if unknown
    master_port: int | None  # port that the environment prescribes; None: the launcher chooses one
    job: str  # text that is unique for this launch among all launches of the user (job and step)
    # whether the source gives the node rank; else it is derived as if ranks fill nodes in order
    node_known: bool = True
    tasks_per_node: tuple[int, ...] = ()  # number of ranks on each node; empty: unknown
    fills_nodes: bool = True  # whether ranks fill nodes in order, as far as the source tells


class _Place(Struct):
    environ: Environ  # environment of this process
    hostname: str  # name of this host
    allocation: tuple[str, ...]  # distinct hosts of the allocation in order; empty if unknown

    def number(self, name: str) -> int:
        try:
            return int(self.environ[name])
        except ValueError:
            raise TopologyError(f"{name}={self.environ[name]!r} is not a number") from None

    def has(self, *names: str) -> bool:
        return all(self.environ.get(name) for name in names)

    def first(self, *names: str) -> int | None:
        return next((self.number(name) for name in names if self.has(name)), None)


class Nodes(Struct):
    of_ranks: tuple[int, ...]  # node rank of each rank
    hosts: tuple[str, ...]  # host name of each node rank


def assign_nodes(reports: Sequence[tuple[int | None, str]], hosts: Sequence[str] = ()) -> Nodes:
    """Determines the node of every rank from the ranks' reports: node rank (None: unknown) and host, in their order.

    | reports | ranks are on the same node if they have | order of the nodes |
    |---|---|---|
    | all have a node rank | the same node rank (simulated nodes share a host) | that of the reported node ranks |
    | at least one has only a host | the same host | that of the first rank on each node |

    hosts: host of each node according to the source; used if all node ranks are known and the numbers match.
    """
    by_number = all(number is not None for number, _ in reports)
    places = [number if by_number else host for number, host in reports]
    named = {place: host for place, (_, host) in zip(reversed(places), reversed(reports), strict=True)}
    order = sorted(dict.fromkeys(places), key=lambda place: place if isinstance(place, int) else 0)  # hosts: as seen
    node_ranks = {place: number for number, place in enumerate(order)}
    fits = by_number and len(hosts) == len(order)
    return Nodes(
        tuple(node_ranks[place] for place in places), tuple(hosts) if fits else tuple(named[place] for place in order)
    )


def nodes_in_order(place: Topology) -> tuple[int, ...]:
    """Returns the node rank of each rank if this rank knows that ranks fill nodes in order, else ().

    With srun --distribution=cyclic or mpirun --map-by node they do not; then `assign_nodes` determines the node ranks.
    """
    if not place.fills_nodes:
        return ()
    counts = place.tasks_per_node
    if not counts and place.node_known and place.world_size == place.local_world_size * place.nnodes:
        counts = (place.local_world_size,) * place.nnodes
    found = tuple(node for node, count in enumerate(counts) for _ in range(count))
    fits = len(found) == place.world_size and found[place.rank] == place.node_rank
    return found if fits else ()


def derive(environ: Environ, hostname: str, read: Callable[[str], str]) -> Topology:
    """Returns the topology by the first of SOURCES with all its variables, else of one; raises TopologyError."""
    try:
        place = _Place(environ, hostname, _allocation(environ, read))
        topology = next(filter(None, (source(place) for source in SOURCES.values())), None)
    except (ValueError, ZeroDivisionError) as error:  # an invalid list of nodes or counts, or zero ranks on a node
        raise TopologyError(f"the variables of this job contradict each other: {error}") from None
    if topology is None:
        topology = _uniform("plain", place, 0, 1, 0, 1, job="plain")
    for name, bound in (("rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "nnodes")):
        value, most = getattr(topology, name), getattr(topology, bound)
        if not 0 <= value < most:
            wrong = f"{name.replace('_', ' ')} {value} of {most}"
            raise TopologyError(f"{topology.source} gives {wrong}: its variables contradict each other")
    if master := environ.get("MASTER_ADDR"):  # set by the user: overrides every source
        port = place.first("MASTER_PORT")
        topology = replace(topology, master=master, master_port=topology.master_port or port)
    if not topology.master:
        raise TopologyError(f"{topology.source} does not tell the host of rank 0: set MASTER_ADDR to it")
    return topology


def _allocation(environ: Environ, read: Callable[[str], str]) -> tuple[str, ...]:
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        return tuple(expand(nodes))
    if path := environ.get("PBS_NODEFILE"):
        try:
            return tuple(hosts_in_node_file(read(path)))
        except FileNotFoundError:  # PBS Pro before 2021 writes it on the job's first node only
            return tuple(hosts_in(environ))
    return ()


def _uniform(
    source: str, place: _Place, rank: int, world: int, local_rank: int, local_world: int, job: str,
    node: int | None = None,
) -> Topology:  # fmt: skip
    # After the ranks have joined, `assign_nodes` corrects it
    node_known = node is not None or world == 1
    nnodes = max(-(-world // local_world), (node or 0) + 1)
    hosts = place.allocation if nnodes > 1 else (place.hostname,)
    master = hosts[0] if hosts else ""  # whether or not the nodes have as many ranks each
    if len(hosts) != nnodes:
        hosts = ()
    if node is None:
        names = [host.partition(".")[0] for host in hosts]
        here = place.hostname.partition(".")[0]
        node = names.index(here) if names.count(here) == 1 else rank // local_world
    return Topology(source, rank, local_rank, node, world, local_world, nnodes, hosts, master, None, job, node_known)


def _launcher(place: _Place) -> Topology | None:
    # This and the other sources return None if one of their variables is not set
    if not place.has("LAUNCHER_TASK", "LAUNCHER_TASKS", "LAUNCHER_NODE", "LAUNCHER_HOSTS"):
        return None
    hosts = tuple(hosts_in(place.environ))
    tasks, task = place.number("LAUNCHER_TASKS"), place.number("LAUNCHER_TASK")
    per_node = tasks // len(hosts)
    job = place.environ.get("LAUNCHER_JOB", "")
    return Topology(
        "launcher", task, task % per_node, place.number("LAUNCHER_NODE"), tasks, per_node, len(hosts), hosts, hosts[0],
        None, job,
    )  # fmt: skip


def _torchrun(place: _Place) -> Topology | None:
    if not place.has("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        return None
    world, local_world = place.number("WORLD_SIZE"), place.number("LOCAL_WORLD_SIZE")
    nnodes = place.first("GROUP_WORLD_SIZE") or -(-world // local_world)
    known = tuple(hosts_in(place.environ))  # set by our agent
    hosts = next((hosts for hosts in (known, place.allocation, (place.hostname,)) if len(hosts) == nnodes), ())
    node = place.first("GROUP_RANK", "NODE_RANK")  # missing where a user sets the other variables by hand
    return Topology(
        "torchrun", place.number("RANK"), place.number("LOCAL_RANK"),
        place.number("RANK") // local_world if node is None else node, world, local_world, nnodes, hosts,
        place.environ["MASTER_ADDR"], place.number("MASTER_PORT"),
        place.environ.get("TORCHELASTIC_RUN_ID", "torchrun"), node_known=node is not None or nnodes == 1,
    )  # fmt: skip


def _srun(place: _Place) -> Topology | None:
    # man srun, OUTPUT ENVIRONMENT VARIABLES. The step's values are used, because the job may have more nodes. The batch
    # script has SLURM_PROCID too, but not SLURM_STEP_*, so it is not taken for a task.
    if not place.has(
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
        "SLURM_STEP_TASKS_PER_NODE",
    ):  # fmt: skip
        return None
    node, hosts = place.number("SLURM_NODEID"), place.allocation
    counts = expand_counts(place.environ["SLURM_STEP_TASKS_PER_NODE"])
    if len(counts) != len(hosts) or node >= len(hosts):
        raise TopologyError(
            f"srun gives {len(hosts)} hosts (SLURM_STEP_NODELIST), {len(counts)} task counts "
            f"(SLURM_STEP_TASKS_PER_NODE) and node {node}: its variables contradict each other"
        )
    job = f"{place.environ.get('SLURM_JOB_ID', '')}.{place.environ.get('SLURM_STEP_ID', '')}"
    # The distribution to nodes, before that to sockets (`block:cyclic`) and options (`block,nopack`); empty: block.
    distribution = re.split("[:,]", place.environ.get("SLURM_DISTRIBUTION", ""))[0]
    master = "" if distribution == "arbitrary" and len(hosts) > 1 else hosts[0]
    fills_nodes, local_rank = distribution in ("", "block"), place.number("SLURM_LOCALID")
    # Where a site has a topology, srun of 26.05 numbers tasks in its order, and no task knows where task 0 is. So tasks
    # that fill nodes are counted in the order of the list.
    rank = sum(counts[:node]) + local_rank if fills_nodes else place.number("SLURM_PROCID")
    return Topology(
        "srun", rank, local_rank, node, place.number("SLURM_STEP_NUM_TASKS"), counts[node], len(hosts), hosts, master,
        None, f"slurm-{job}", tasks_per_node=tuple(counts), fills_nodes=fills_nodes,
    )  # fmt: skip


def _mpi(
    source: str, names: Sequence[str], job: Sequence[str], local_size: Sequence[str], node: str | None = None
) -> Callable[[_Place], Topology | None]:
    # names: variables with the rank, the local rank and the world size; job, local_size: the first that is set counts

    def read(place: _Place) -> Topology | None:
        complete = place.has(*names, *([node] if node else []))
        if not complete or (local_world := place.first(*local_size)) is None:
            return None
        rank, local_rank, world = map(place.number, names)
        found = next(filter(None, map(place.environ.get, job)), "")
        node_rank = place.number(node) if node else None
        return _uniform(source, place, rank, world, local_rank, local_world, f"{source}-{found}", node_rank)

    return read


_OMPI = "OMPI_COMM_WORLD_"


def _pbs(place: _Place) -> Topology | None:
    # The job script has PBS_TASKNUM=1; pbsdsh did not start it, so it is not taken for a task
    if not place.has("PBS_NODEFILE", "PBS_NODENUM", "PBS_TASKNUM") or place.environ["PBS_TASKNUM"] == "1":
        return None
    if not place.allocation:
        raise TopologyError(
            f"pbsdsh started this process, and PBS_NODEFILE={place.environ['PBS_NODEFILE']}, which names the job's "
            "nodes, is not there or is empty: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    node, nodes = place.number("PBS_NODENUM"), len(place.allocation)
    job = f"pbs-{place.environ.get('PBS_JOBID', '')}"
    return Topology("pbs", node, 0, node, nodes, 1, nodes, place.allocation, place.allocation[0], None, job)


SOURCES: dict[str, Callable[[_Place], Topology | None]] = {
    "launcher": _launcher,
    "torchrun": _torchrun,
    "srun": _srun,
    "openmpi": _mpi(
        "openmpi", (f"{_OMPI}RANK", f"{_OMPI}LOCAL_RANK", f"{_OMPI}SIZE"), ("PMIX_NAMESPACE",), (f"{_OMPI}LOCAL_SIZE",)
    ),
    "pals": _mpi(  # HPE Cray PALS (mpiexec on Cray EX): man intro_pals; the world size is from Cray PMI
        "pals", ("PALS_RANKID", "PALS_LOCAL_RANKID", "PMI_SIZE"), ("PALS_APID",),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"), "PALS_NODEID",
    ),
    "mpich": _mpi(
        "mpich", ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"), ("SLURM_JOB_ID", "PBS_JOBID"), ("MPI_LOCALNRANKS",)
    ),
    "pbs": _pbs,
}  # fmt: skip
