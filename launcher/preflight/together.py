"""The checks of a preflight that need all nodes: clocks, an all_reduce, and connections between nodes.

They run in the same processes as those of `preflight.checks`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store

from launcher.failures.codes import CheckCode
from launcher.preflight.checks import Level, Problem
from launcher.rendezvous.interfaces import listen
from launcher.runs.events import Observation
from launcher.torch_compat import destroy_without_gil
from launcher.worker import accelerator

CALL = 2.0  # timeout of a connection to another node, in seconds
SKEW = 1.0  # difference of two clocks without a warning, in seconds
MOST_RANKS = 8  # most ranks with wrong elements in an observation
ELEMENTS = 65536  # least number of elements of the all_reduce


# -- clocks


def offset(mine: Sequence[tuple[float, float]], theirs: Sequence[float]) -> tuple[float, float]:
    """Returns by how many seconds this clock is ahead of another, and the largest error of that number.

    mine: for each request, this clock's time before the request and after the reply.
    theirs: for each request, the other clock's time between these two.
    """
    (before, after), then = min(zip(mine, theirs, strict=True), key=lambda pair: pair[0][1] - pair[0][0])
    return (before + after) / 2 - then, (after - before) / 2


def clock(store: Store, first: bool, nodes: int, rounds: int = 3) -> Observation:
    """Returns by how much this node's clock is ahead of the first node's as an Observation of code CLOCK.

    One process of each node must call this function.

    In each round all nodes send a request and wait. The first node reads its clock when the last request has arrived,
    which is between any node's two readings. From the second round on all requests come at almost the same time, so
    the two readings of each node are close.

    store: store that all nodes share.
    first: whether this is the first node.
    rounds: number of comparisons; the one with the smallest error counts.
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
    """Returns by how much a node's clock is ahead of the first node's as an Observation of code CLOCK.

    ahead: seconds by which this node's clock is ahead; negative: behind.
    error: largest error of `ahead`, in seconds.
    Raises Problem: the difference is larger than SKEW plus `error`. This is only a WARNING, because leases, timeouts
        and the time left of an attempt never compare the clocks of two hosts.
    """
    found = Observation(code=CheckCode.CLOCK, ahead=ahead, accuracy=error)
    if abs(ahead) > SKEW + error:
        raise Problem(replace(found, code=CheckCode.CLOCK_OFF), Level.WARNING)
    return found


# -- all ranks together


def reduce(rank: int, world_size: int, where: torch.device) -> Observation:
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
    """Returns a listening socket on a network interface, and its `ADDRESS PORT`; None and "" if none can be opened.

    interface: name of the interface. If it does not exist or has no address, the addresses of the host's name are used,
        as gloo does.
    """
    for name in (interface, None):
        with contextlib.suppress(OSError):
            server, (address, port) = listen(name, 4096)
            return server, f"{address} {port}"
    return None, ""


def reach(addresses: Mapping[int, str], names: Mapping[int, str]) -> Observation:
    """Connects to the ports of other nodes. Returns the number of nodes in an Observation of code REACHED.

    addresses: `ADDRESS PORT` of each node, by its agent's index; empty: the node has opened no port.
    names: host name of each node, by its agent's index.
    Raises Problem: some nodes cannot be reached; accuses their agents.
    """

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
    """Initializes the default process group for the preflight.

    timeout: seconds for each collective.
    Raises RuntimeError: from the backend, if other ranks cannot be reached.
    """
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout),
        device_id=where if accelerator.ON_STREAM.get(backend) == where.type else None,
    )  # fmt: skip
    destroy_without_gil(dist.group.WORLD)
