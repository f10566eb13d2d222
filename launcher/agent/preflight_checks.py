"""The checks that a node makes in a preflight, alone and with other nodes.

They run in ranks (see `preflight`): a device or a file system that hangs must not hang the agent, and an agent must
never touch a GPU, since ranks are forked from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed import DistStoreError, PrefixStore, Store, TCPStore

from launcher.checkpoint import format as checkpoints
from launcher.config.schema import Backend, Device, LaunchMode
from launcher.failures.known_errors import LOST_PEER, first_line
from launcher.formatting import format_size, plural
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Placement, Rendezvous, listen_on
from launcher.worker import devices, process_group, shared_with_agent, user_script

MIB = 2**20
# Free bytes in a directory: below LEAST a check fails, below ENOUGH it warns.
LEAST, ENOUGH = 16 * MIB, 1024 * MIB
LEAST_TMP, ENOUGH_TMP = 16 * MIB, 256 * MIB
LEAST_SHM, ENOUGH_SHM = MIB, 64 * MIB  # ENOUGH_SHM is per rank: NCCL and data loaders keep buffers there
SHM = Path("/dev/shm")  # noqa: S108
WRITTEN = 65536  # bytes of the test file that is written to a directory
SEEN = 10.0  # timeout until a file of another node is visible, in seconds; NFS caches may delay it
SIDE = 256  # rows and columns of the matrices that a device multiplies
BUSY = 0.1  # share of a GPU's memory that other processes may use without a warning
_SYMPTOM = re.compile(LOST_PEER.pattern + r"|[Tt]imed? ?out|no response|wait timeout", re.DOTALL)


class CheckLevel(str, Enum):
    FINE = "fine"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class NodeCheck:
    name: str  # device, space, run_dir, clock, all_reduce, fabric or reach
    level: CheckLevel = CheckLevel.FINE
    found: str = ""  # what is wrong or, for a check that is fine, what was measured
    ms: float = 0.0  # duration in milliseconds
    # the ranks (for all_reduce) or the indices of the agents (for run_dir and reach) that seem to be the cause
    accused: tuple[int, ...] = ()
    looked: int = 0  # for run_dir and reach, number of agents that the check tried to see or reach
    symptom: bool = False  # whether the error may only be the effect of a missing or late rank elsewhere


class CheckProblem(Exception):
    """A check has failed, or warns. The attributes are fields of the `NodeCheck` that the caller makes from it."""

    def __init__(
        self, found: str, level: CheckLevel = CheckLevel.FAILED, accused: Sequence[int] = (), looked: int = 0
    ) -> None:
        super().__init__(found)
        self.found, self.level, self.accused, self.looked = found, level, tuple(accused), looked


def check(name: str, look: Callable[[], str]) -> NodeCheck:
    """Runs a check (returns what it measured, or raises CheckProblem) with its duration; other errors fail it too."""
    began = time.monotonic()
    try:
        outcome = NodeCheck(name, found=look())
    except CheckProblem as problem:
        outcome = NodeCheck(name, problem.level, problem.found, accused=problem.accused, looked=problem.looked)
    except Exception as error:  # drivers and file systems raise anything
        found = first_line(str(error)) or type(error).__name__
        outcome = NodeCheck(name, CheckLevel.FAILED, found, symptom=bool(_SYMPTOM.search(str(error))))
    return replace(outcome, ms=round(1000 * (time.monotonic() - began), 1))


def require_devices(plan: JobPlan, there: int) -> None:
    """Raises CheckProblem if a process sees fewer GPUs than asked for (with launch=tasks it may see its own only)."""
    kind = plan.workload.device
    if kind == Device.cpu.value or (kind == Device.auto.value and not plan.gpus_per_node):
        return
    wanted = 1 if plan.launch.mode == LaunchMode.tasks.value else max(plan.gpus_per_node, 1)
    if there < wanted:
        asked = f"gpus_per_node={plan.gpus_per_node} asks for {max(plan.gpus_per_node, 1)}"
        look = "see what `nvidia-smi` (`rocm-smi`, `xpu-smi`) says there"
        raise CheckProblem(f"torch sees {plural(there, 'GPU')}, and {asked}: {look}")


def device(plan: JobPlan, local_rank: int) -> torch.device:
    """Returns the device that a rank will use, as `process_group.init` does; CheckProblem: there are too few GPUs."""
    seen = devices.find_accelerators(os.environ)
    count = seen.count if plan.workload.device in (Device.auto.value, seen.kind) else 0
    require_devices(plan, count)
    return torch.device(seen.kind, local_rank % count) if count else torch.device("cpu")


def compute(where: torch.device) -> str:
    """Multiplies matrices of small integers on a device, which is exact in any format; returns its name."""
    if (there := devices.module(where)) is not None:
        there.set_device(where)
    memory = devices.memory(where)
    rows = torch.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    left, right = rows % 7, rows.T % 5
    known = left.double() @ right.double()
    product = (left.to(where, torch.float32) @ right.to(where, torch.float32)).cpu().double()
    if wrong := int((product != known).sum()):
        elements = f"{wrong} of {SIDE * SIDE} elements of a product of matrices"
        raise CheckProblem(f"{where} computes wrong: {elements}; replace it")
    if memory is not None and memory[1] - memory[0] > BUSY * memory[1]:
        used = f"{(memory[1] - memory[0]) / 2**30:.1f} of {memory[1] / 2**30:.0f} GiB"
        text = f"{used} of the memory of {where} are in use: is a process of another job still running there?"
        raise CheckProblem(text, CheckLevel.WARNING)
    return devices.name(where) or "cpu"


def fabric(log: Path, expects: Mapping[str, Sequence[str]]) -> str:
    """Returns NCCL's network; CheckProblem: it is not what `cluster.expects` says."""
    found = devices.read_nccl_log(log)
    if wrong := devices.network_mismatch(found, expects):
        raise CheckProblem(wrong)
    return found.text if found is not None else "NCCL wrote no log"


def judge_space(key: str, folder: str, free: int, files: int, least: int, enough: int) -> str:
    """Returns the free space of a directory. Raises CheckProblem: there is less than `least` or `enough`.

    key: config key or variable to set if there is too little. files: that can still be created; -1: not counted.
    """
    has, other = f"{folder} has {free / MIB:,.0f} MiB free", f"or set {key} to another file system"
    if 0 <= files < 10:
        raise CheckProblem(f"{folder} has room for only {files} more files (inodes): remove some, {other}")
    if free < least:
        raise CheckProblem(f"{has}, less than {format_size(least)}: free some, {other}")
    if free < enough:
        raise CheckProblem(f"{has}: free some, {other}", CheckLevel.WARNING)
    return has


def space(key: str, folder: Path, least: int, enough: int) -> str:
    """Returns the free space of a directory, or of its nearest parent, if it can be written to; as `judge_space`."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise CheckProblem(f"{there} is no folder: set {key} to one")
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".preflight-") as file:
            file.write(bytes(WRITTEN))
            file.flush()
            os.fsync(file.fileno())  # some file systems report a full quota only here
    except OSError as error:
        raise CheckProblem(_not_written(error, there, key)) from None
    has = os.statvfs(there)
    return judge_space(key, str(there), has.f_bavail * has.f_frsize, has.f_favail if has.f_files else -1, least, enough)


def _not_written(error: OSError, folder: Path, key: str) -> str:
    # Returns why a file could not be written to a directory that the user sets with `key`
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "its file system is full" if full else error.strerror or str(error)
    return f"{folder} cannot be written to ({why}): set {key} to a folder that can"


def temporary() -> str:
    folder = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # tempfile would silently choose another folder
    if not folder.is_dir():
        raise CheckProblem(f"TMPDIR={folder} is not there: make it in cluster.setup, or set it in cluster.environment")
    return space("TMPDIR (cluster.environment)", folder, LEAST_TMP, ENOUGH_TMP)


def shared_memory(ranks: int) -> str:
    has = os.statvfs(SHM)
    return judge_space(
        "a container's --shm-size", str(SHM), has.f_bavail * has.f_frsize, -1, LEAST_SHM, ENOUGH_SHM * ranks
    )


def newest_checkpoint(plan: JobPlan) -> int:
    """Returns the bytes of the newest checkpoint; 0: there is none that can be read."""
    with contextlib.suppress(checkpoints.CannotRead):
        for path in checkpoints.candidates(Path(plan.checkpoint.dir)):
            with contextlib.suppress(checkpoints.CheckpointError):
                return checkpoints.read(path).size
    return 0


def write_mine(folder: Path, index: int, text: str) -> str:
    """Writes this agent's file `member-INDEX`, for other nodes, to the attempt's private directory `preflight`."""
    path = folder / f"member-{index}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
    except OSError as error:
        raise CheckProblem(_not_written(error, folder, "runs_dir")) from None
    judge_owner(path, status.st_uid, os.getuid(), status.st_mode)
    return f"{path} written"


def judge_owner(path: Path, owner: int, me: int, mode: int) -> None:
    """Raises CheckProblem for a file of mode 0600 that has another owner now (mapped ids) or is writable by others."""
    if owner != me:
        maps = "its file system maps user ids (as NFS's all_squash does); set runs_dir to another file system"
        raise CheckProblem(f"{path} was made by user {me} and belongs to user {owner}: {maps}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        is_open = f"{path} has mode {stat.S_IMODE(mode):o} and was made with 600"
        raise CheckProblem(f"{is_open}: set runs_dir to another file system")


def see(folder: Path, texts: Mapping[int, str], timeout: float) -> str:
    """Waits until other agents' files have these texts, by index; CheckProblem: accuses agents whose file has not."""
    deadline, left = time.monotonic() + timeout, dict(texts)
    while True:
        for index in list(left):
            with contextlib.suppress(OSError):
                if (folder / f"member-{index}").read_text() == left[index]:
                    del left[index]
        if not left:
            return f"{plural(len(texts), 'file')} of other nodes seen"
        if time.monotonic() > deadline:
            asks = "is it on a file system that all nodes share? Set runs_dir to one"
            text = f"{folder} does not show what other nodes write within {timeout:g} s: {asks}"
            raise CheckProblem(text, accused=sorted(left), looked=len(texts))
        os.scandir(folder).close()  # refreshes NFS's cache
        time.sleep(0.05)


CALL = 2.0  # timeout of a connection to another node, in seconds
SKEW = 1.0  # difference of two clocks without a warning, in seconds
MOST_RANKS = 8  # most ranks with wrong elements in an observation
MOST_SENDERS = 1024  # of wrong elements that a rank accuses: what comes wrong from more is its own fault
MOST_CALLED = 64  # other nodes that a node tries to reach
ELEMENTS = 65536  # least number of elements of the all_reduce


def offset(mine: Sequence[tuple[float, float]], theirs: Sequence[float]) -> tuple[float, float]:
    """Returns by how many seconds this clock is ahead, and the error; mine: before and after each of theirs."""
    (before, after), then = min(zip(mine, theirs, strict=True), key=lambda pair: pair[0][1] - pair[0][0])
    return (before + after) / 2 - then, (after - before) / 2


def clock(store: Store, first: bool, nodes: int, rounds: int = 3) -> str:
    """Returns by how much this node's clock is ahead of the first node's, from one process of each node.

    In each round all nodes send a request and wait. The first node reads its clock when the last request has arrived,
    which is between any node's two readings. The round with the smallest error counts. Raises CheckProblem (as
    `judge_clock`) or DistStoreError: not all nodes took part before the store's timeout.
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


def judge_clock(ahead: float, error: float) -> str:
    """Returns by how much this node's clock is ahead of the first one's; a WARNING, as nothing compares two clocks."""
    way = "ahead of" if ahead > 0 else "behind"
    text = f"its clock is {abs(ahead):.3f} s {way} the first node's (± {error:.3f} s)"
    if abs(ahead) > SKEW + error:
        text += ": have the nodes' clocks synchronised; times in its records are wrong"
        raise CheckProblem(text, CheckLevel.WARNING)
    return text


def reduce_together(rank: int, world_size: int, where: torch.device) -> str:
    """Makes an all_reduce with all ranks; returns its bytes and seconds.

    Element i is a number on rank (i modulo world size) and 0 on all others: sums are exact in float32 in any order, and
    a wrong element shows which rank it came from. Raises CheckProblem, or RuntimeError from the backend.
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
        ranks = ", ".join(map(str, accused[:MOST_RANKS]))
        text = f"an all_reduce of {len(places)} elements came out wrong in {len(wrong)} of them (from rank {ranks})"
        text += ": test its network card and memory"
        raise CheckProblem(text, accused=accused if len(accused) <= MOST_SENDERS else ())
    size = f"{len(places) * 4 // 1024} KiB over {plural(world_size, 'rank')}"
    return f"{size} in {seconds * 1000:.2f} ms"


def open_port(interface: str) -> tuple[socket.socket | None, str]:
    """Returns a listening socket, and its `ADDRESS PORT`, on an interface, or as gloo does; or None and ""."""
    for name in (interface, None):
        with contextlib.suppress(OSError):
            server, (address, port) = listen_on(name, 4096)
            return server, f"{address} {port}"
    return None, ""


def reach(addresses: Mapping[int, str], names: Mapping[int, str]) -> str:
    """Connects to `ADDRESS PORT` (empty: none is open) of each other node; CheckProblem: accuses those not reached."""

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
        return f"{plural(len(addresses), 'other node')} reached"
    first = next(iter(failed))
    others = names[first] + (f" and {len(failed) - 1} more" if len(failed) > 1 else "")
    why = f"({failed[first]}) at {addresses[first]}" if addresses[first] else "(it has opened no port)"
    asks = "is there a firewall between the nodes, or the wrong cluster.interface?"
    text = f"from {socket.gethostname()} {others} cannot be reached {why}: {asks}"
    raise CheckProblem(text, accused=sorted(failed), looked=len(addresses))


STORE = 30.0  # timeout of operations on the store, in seconds
FILE = 10.0  # timeout for another node to write its file, in seconds
NEAR = 5.0  # timeout for other nodes to reach the same check, in seconds
GATE = 600.0  # longer than all agents need to decide about the first part, in seconds
ALONE_PART, TOGETHER_PART = "alone", "together"  # the keys of a rank's report


def check_rank(
    plan: JobPlan, folder: Path, rendezvous: Rendezvous, position: int, timeout: float, placement: Placement
) -> NoReturn:
    """Makes the checks of one rank, and adds those of each part to its report. Runs until the agent kills it."""
    agent = shared_with_agent.take()
    torch.set_num_threads(1)
    checks = RankChecks(plan, folder, rendezvous, position, placement.place)

    report = {ALONE_PART: [asdict(each) for each in checks.alone()]}
    user_script.write_report(agent.report, os.getpid(), {"returned": report})
    agent.wait(GATE)  # the agent opens it, or kills this rank
    report[TOGETHER_PART] = [asdict(each) for each in checks.together(timeout)]
    user_script.write_report(agent.report, os.getpid(), {"returned": report})
    while True:  # others may still want to reach this node
        signal.pause()


def cannot_start(number: int, message: str, folder: Path) -> NodeCheck:
    """Returns the failed check of a node that could not start the ranks of its preflight (errno, message)."""
    error = OSError(number, os.strerror(number))
    if isinstance(error, BlockingIOError) or number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return NodeCheck("device", CheckLevel.FAILED, message)
    return NodeCheck("run_dir", CheckLevel.FAILED, _not_written(error, folder, "runs_dir"))


class RankChecks:
    """The checks of one rank (arguments: `check_rank`); the first one of a node checks the node, too."""

    def __init__(self, plan: JobPlan, folder: Path, rendezvous: Rendezvous, position: int, place: int) -> None:
        # place: index of the rank among those of its agent
        self._plan, self._folder = plan, folder
        self._own = rendezvous.members[position]
        self._rank = rendezvous.first_rank(position) + place
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
        self._nccl = self._folder / devices.nccl_log_name(self._rank)  # NCCL's log of this rank, if it has one

    def alone(self) -> list[NodeCheck]:
        """Returns the results of the first part: device and, once a node, space, and whether it sees others' files."""
        plan = self._plan
        text = f"{plan.run_id} {self._own.index} {os.urandom(8).hex()}"
        if self._leads:  # first, since others wait for it
            written = check("run_dir", lambda: write_mine(self._folder, self._own.index, text))
            self._store.set(f"file/{self._own.index}", text if written.level is not CheckLevel.FAILED else "")
        if self._rank == 0:
            self._store.set("newest", str(newest_checkpoint(plan)))
        found = [check("device", self._look_at_device)]
        if self._leads:
            found += [
                check("space", lambda: space("runs_dir", Path(plan.run_dir), LEAST, ENOUGH)),
                check("space", self._checkpoint_space),
                check("space", temporary),
            ]
            if SHM.is_dir():
                found.append(check("space", lambda: shared_memory(self._local_ranks)))
            found.append(written if written.level is CheckLevel.FAILED else check("run_dir", self._see_others))
        return found

    def together(self, timeout: float) -> list[NodeCheck]:
        """Returns the results of the second part, with all ranks: clocks, an all_reduce, and the network of NCCL."""
        name = "gloo" if self._plan.workload.backend == Backend.mpi.value else self._plan.workload.backend

        def reduce() -> str:
            backend = process_group._backend(name, self._device)
            where = torch.device("cpu") if self._plan.workload.backend == Backend.mpi.value else self._device
            if backend == Backend.nccl.value:
                os.environ.update(devices.nccl_log_variables(os.environ, self._nccl))
            process_group.start(backend, self._store, self._rank, self._world_size, where, timeout)
            return reduce_together(self._rank, self._world_size, where)

        found: list[NodeCheck] = []
        if self._leads:  # the port stays open until this process ends
            self._listener, address = open_port(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0])
            self._store.set(f"door/{self._own.index}", address)
            found = [check("clock", self._compare_clocks)]
        found.append(check("all_reduce", reduce))
        if self._nccl.exists():
            several = len(self._heads) > 1  # on one node NCCL needs no network
            expects = self._plan.cluster.expects if several else {}
            found.append(check("fabric", lambda: fabric(self._nccl, expects)))
        if self._leads and any(each.symptom for each in found):
            found.append(check("reach", self._reach_others))
        return found

    def _compare_clocks(self) -> str:
        self._store.set_timeout(timedelta(seconds=NEAR))
        try:
            return clock(self._store, self._own == self._heads[0], len(self._heads))
        except DistStoreError:  # the all_reduce will report the missing node
            text = f"not compared with the others, which did not respond in {NEAR:g} s"
            raise CheckProblem(text, CheckLevel.WARNING) from None
        finally:
            self._store.set_timeout(timedelta(seconds=STORE))

    def _reach_others(self) -> str:
        at = self._heads.index(self._own)
        others = [*self._heads[at + 1 :], *self._heads[:at]][:MOST_CALLED]  # all of thousands would take too long
        keys = {head.index: f"door/{head.index}" for head in others}
        with contextlib.suppress(DistStoreError):
            self._store.wait([*keys.values()], timedelta(seconds=NEAR))
        addresses = {
            index: self._store.get(key).decode() if self._store.check([key]) else "" for index, key in keys.items()
        }
        return reach(addresses, {head.index: head.host for head in others})

    def _checkpoint_space(self) -> str:
        # For one more like the newest, whose size one node reads: what fills a folder that all share fails on all nodes
        newest = 0
        with contextlib.suppress(DistStoreError):  # the first node reports its own error
            self._store.wait(["newest"], timedelta(seconds=FILE))
            newest = int(self._store.get("newest"))
        return space("checkpoint.dir", Path(self._plan.checkpoint.dir), max(LEAST, newest), max(ENOUGH, 2 * newest))

    def _look_at_device(self) -> str:
        self._device = device(self._plan, int(os.environ["LOCAL_RANK"]))
        return compute(self._device)

    def _see_others(self) -> str:
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
        return see(self._folder, texts, SEEN)
