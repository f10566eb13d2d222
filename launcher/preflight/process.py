"""The process of a node that makes the checks, alone and together with other nodes.

They run in the same processes as those of `preflight.checks`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

from launcher.config.schema import Backend
from launcher.failures.codes import CheckCode
from launcher.preflight import checks
from launcher.preflight.checks import Check, Level, Problem, check
from launcher.processes import groups
from launcher.rendezvous.discovery import listen_on
from launcher.rendezvous.rounds import Rendezvous, place_variables
from launcher.runs.events import Observation
from launcher.spec.plan import JobPlan
from launcher.torch_compat import destroy_without_gil
from launcher.worker import devices, nccl_report, process_group

CALL = 2.0  # timeout of a connection to another node, in seconds
SKEW = 1.0  # difference of two clocks without a warning, in seconds
MOST_RANKS = 8  # most ranks with wrong elements in an observation
ELEMENTS = 65536  # least number of elements of the all_reduce


# -- clocks


def offset(mine: Sequence[tuple[float, float]], theirs: Sequence[float]) -> tuple[float, float]:
    """Returns by how many seconds this clock is ahead of another, and the largest error of that number.

    mine: for each request, this clock's time before the request and after the reply; theirs: the other's, between.
    """
    (before, after), then = min(zip(mine, theirs, strict=True), key=lambda pair: pair[0][1] - pair[0][0])
    return (before + after) / 2 - then, (after - before) / 2


def clock(store: Store, first: bool, nodes: int, rounds: int = 3) -> Observation:
    """Returns by how much this node's clock is ahead of the first node's (CLOCK), from one process of each node.

    In each round all nodes send a request and wait. The first node reads its clock when the last request has arrived,
    which is between any node's two readings. From the second round on all requests come at almost the same time, so the
    two readings of each node are close. The round with the smallest error counts.
    Raises Problem: the clocks differ by more than SKEW seconds (WARNING).
    Raises DistStoreError: not all nodes took part before the store's timeout.
    """
    mine, theirs = [], []
    for number in range(rounds):
        before = time.time()
        if store.add(f"clock/{number}", 1) == nodes:
            store.set(f"clock/{number}/asked", "1")
        if first:
            store.wait([f"clock/{number}/asked"])
            store.set(f"clock/{number}/now", repr(time.time()))
        theirs.append(float(store.get(f"clock/{number}/now")))
        mine.append((before, time.time()))
    ahead, error = offset(mine, theirs)
    return judge_clock(0.0 if first else ahead, error)


def judge_clock(ahead: float, error: float) -> Observation:
    """Returns by how many seconds, with which error, this node's clock is ahead of the first one's (CLOCK).

    Raises Problem: the difference is larger than SKEW plus `error`. This is only a WARNING, because leases, timeouts
        and the time left of an attempt never compare the clocks of two hosts.
    """
    found = Observation(code=CheckCode.CLOCK, ahead=ahead, accuracy=error)
    if abs(ahead) > SKEW + error:
        raise Problem(replace(found, code=CheckCode.CLOCK_OFF), Level.WARNING)
    return found


# -- all ranks together


def reduce_together(rank: int, world_size: int, where: torch.device) -> Observation:
    """Makes an all_reduce in which each element comes from one rank; returns an Observation of code REDUCED.

    The Observation has the bytes and seconds of the all_reduce. All ranks must call this function. Element i is a
    number on rank (i modulo world size) and 0 on all others. The sums are exact in float32 in any order, and a wrong
    element shows which rank it came from.

    Raises Problem: elements are wrong; accuses the ranks that they come from.
    Raises RuntimeError: from the backend, if ranks are gone, late or cannot be reached.
    """
    places = torch.arange(max(ELEMENTS, world_size))
    known = (places % 1009 + 1).to(torch.float32)
    mine = torch.where(places % world_size == rank, known, torch.zeros(())).to(where)
    first = mine.clone()
    dist.all_reduce(first)  # opens connections
    began = time.perf_counter()
    dist.all_reduce(mine)
    received = mine.cpu()
    seconds = time.perf_counter() - began
    wrong = torch.nonzero((received != known) | (first.cpu() != known)).flatten()
    if len(wrong):
        accused = torch.unique(wrong % world_size).tolist()
        found = Observation(
            code=CheckCode.WRONG_ELEMENTS, count=len(wrong), of=len(places), ranks=tuple(accused[:MOST_RANKS])
        )
        raise Problem(found, accused=accused)
    return Observation(code=CheckCode.REDUCED, count=world_size, total=len(places) * 4, seconds=seconds)


def open_port(interface: str) -> tuple[socket.socket | None, str]:
    """Returns a listening socket, and its `ADDRESS PORT`, on an interface, or as gloo does; or None and ""."""
    for name in (interface, None):
        with contextlib.suppress(OSError):
            server, (address, port) = listen_on(name, 4096)
            return server, f"{address} {port}"
    return None, ""


def reach(addresses: Mapping[int, str], names: Mapping[int, str]) -> Observation:
    """Connects to `ADDRESS PORT` (empty: none is open) of each other node; Problem: accuses those not reached."""

    def call(text: str) -> str | None:
        address, _, port = text.partition(" ")
        try:
            socket.create_connection((address, int(port)), timeout=CALL).close()
        except (OSError, ValueError) as error:
            return str(error)
        return None

    with ThreadPoolExecutor(32) as pool:
        errors = zip(addresses, pool.map(call, addresses.values()), strict=True)
        failed = {index: error for index, error in errors if error is not None}
    if not failed:
        return Observation(code=CheckCode.REACHED, count=len(addresses))
    first = next(iter(failed))
    found = Observation(
        code=CheckCode.NOT_REACHED, host=socket.gethostname(), hosts=tuple(names[index] for index in failed),
        address=addresses[first], error=failed[first] if addresses[first] else "",
    )  # fmt: skip
    raise Problem(found, accused=sorted(failed), looked=len(addresses))


def join(backend: str, store: Store, rank: int, world_size: int, where: torch.device, timeout: float) -> None:
    """Initializes the preflight's process group (timeout: seconds a collective); RuntimeError: ranks not reached."""
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout),
        device_id=where if devices.ON_STREAM.get(backend) == where.type else None,
    )  # fmt: skip
    destroy_without_gil(dist.group.WORLD)


# -- The processes of a preflight. The agent forks one for each future rank, and receives its checks through a pipe


STORE = 30.0  # timeout of the preflight's TCPStore, in seconds
FILE = 10.0  # timeout for another node to write its file, in seconds
NEAR = 5.0  # timeout for other nodes to reach the same check, in seconds


def run(
    plan: JobPlan, attempt: Path, rendezvous: Rendezvous, index: int, place: int, timeout: float, pipe: Connection,
    agent: int,
) -> None:  # fmt: skip
    """Makes the checks of one future rank: the main function of a preflight process. Does not return.

    rendezvous: the agents that take part; its port is that of the preflight's TCPStore.
    index, place: of its agent in `rendezvous.members`, and of the rank among its agent's.
    pipe: receives "begin", "go" and "end" from the agent, and sends the checks of each part.
    agent: process id of the agent, with which this process dies.
    """
    groups.die_with_parent(agent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the agent ends this process
    torch.set_num_threads(1)
    os.environ.update(place_variables(rendezvous.members, index, place))
    with contextlib.suppress(EOFError, OSError):  # the agent has closed the pipe
        if pipe.recv() == "begin":
            looks = RankChecks(plan, attempt, rendezvous, index, place)
            pipe.send(looks.alone())
            if pipe.recv() == "go":
                pipe.send(looks.together(timeout))
                pipe.recv()  # waits for "end": others may still be reading what this process has sent
    os._exit(0)  # skips what a backend would do at exit


class RankChecks:
    """The checks of one future rank (arguments: `run`); the first one of a node checks the node, too."""

    def __init__(self, plan: JobPlan, attempt: Path, rendezvous: Rendezvous, index: int, place: int) -> None:
        self._plan, self._folder, self._members = plan, attempt / "preflight", rendezvous.members
        self._own, self._place = rendezvous.members[index], place
        self._rank = rendezvous.first_rank(index) + place
        self._world_size = rendezvous.world_size
        # The first agent of each node, in order.
        self._heads = list({member.node_rank: member for member in reversed(rendezvous.members)}.values())[::-1]
        self._leads = place == 0 and self._own in self._heads
        self._local_ranks = sum(
            member.ranks for member in rendezvous.members if member.node_rank == self._own.node_rank
        )
        client = TCPStore(
            rendezvous.host, rendezvous.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE)
        )
        self._store = PrefixStore("preflight", client)
        self._device = torch.device("cpu")
        self._nccl = self._folder / nccl_report.log_name(self._rank)  # NCCL's log of this rank, if it has one

    def alone(self) -> list[Check]:
        """Returns the results of the first part: the rank's device, and on the first rank of a node also free space and
        whether the node sees the files of other nodes."""
        plan = self._plan
        text = f"{plan.run_id} {self._own.index} {os.urandom(8).hex()}"
        if self._leads:  # first, since others wait for it
            written = check("run_dir", lambda: checks.write_mine(self._folder, self._own.index, text))
            self._store.set(f"file/{self._own.index}", text if written.level is not Level.FAILED else "")
        found = [check("device", self._look_at_device)]
        if self._leads:
            found += [
                check("space", lambda: checks.space("runs_dir", Path(plan.run_dir), checks.LEAST, checks.ENOUGH)),
                check("space", lambda: checks.checkpoint_space(plan, first=self._rank == 0)),
                check("space", checks.temporary),
            ]
            if checks.SHM.is_dir():
                found.append(check("space", lambda: checks.shared_memory(self._local_ranks)))
            seen = written if written.level is Level.FAILED else check("run_dir", self._see_others)
            found.append(seen)
        return found

    def together(self, timeout: float) -> list[Check]:
        """Returns the results of the second part, with all ranks: clocks, an all_reduce, and the network of NCCL."""
        name = "gloo" if self._plan.workload.backend == Backend.mpi.value else self._plan.workload.backend

        def reduce() -> Observation:
            backend = process_group._backend(name, self._device)
            where = torch.device("cpu") if self._plan.workload.backend == Backend.mpi.value else self._device
            group = PrefixStore("group", self._store)
            if backend == Backend.nccl.value:
                os.environ.update(nccl_report.log_variables(os.environ, self._nccl))
            join(backend, group, self._rank, self._world_size, where, timeout)
            return reduce_together(self._rank, self._world_size, where)

        found: list[Check] = []
        if self._leads:  # the port stays open until this process ends
            self._listener, address = open_port(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0])
            self._store.set(f"door/{self._own.index}", address)
            found = [check("clock", self._compare_clocks)]
        found.append(check("all_reduce", reduce))
        if self._nccl.exists():
            several = len(self._heads) > 1  # on one node NCCL needs no network
            expects = self._plan.cluster.expects if several else {}
            found.append(check("fabric", lambda: checks.fabric(self._nccl, expects)))
        if self._leads and any(each.symptom for each in found):
            found.append(check("reach", self._reach_others))
        return found

    def _compare_clocks(self) -> Observation:
        self._store.set_timeout(timedelta(seconds=NEAR))
        try:
            return clock(self._store, self._own == self._heads[0], len(self._heads))
        except DistStoreError:  # the all_reduce will report the missing node
            raise Problem(Observation(code=CheckCode.CLOCK_UNKNOWN, seconds=NEAR), Level.WARNING) from None
        finally:
            self._store.set_timeout(timedelta(seconds=STORE))

    def _reach_others(self) -> Observation:
        others = [head for head in self._heads if head is not self._own]
        keys = {head.index: f"door/{head.index}" for head in others}
        with contextlib.suppress(DistStoreError):
            self._store.wait([*keys.values()], timedelta(seconds=NEAR))
        addresses = {
            index: self._store.get(key).decode() if self._store.check([key]) else "" for index, key in keys.items()
        }
        return reach(addresses, {head.index: head.host for head in others})

    def _look_at_device(self) -> Observation:
        self._device = checks.device(self._plan, int(os.environ["LOCAL_RANK"]))
        return checks.compute(self._device)

    def _see_others(self) -> Observation:
        # Waits for the files of the first node and of the next two nodes, so that several nodes look for each file
        at, count = self._heads.index(self._own), len(self._heads)
        wanted = {self._heads[place % count].index for place in (0, at + 1, at + 2)} - {self._own.index}
        texts = {}
        for index in wanted:
            try:
                self._store.wait([f"file/{index}"], timedelta(seconds=FILE))
            except DistStoreError:  # the other node reports its own error, or is found because it reports nothing
                continue
            if text := self._store.get(f"file/{index}").decode():
                texts[index] = text
        return checks.see(self._folder, texts, checks.SEEN)
