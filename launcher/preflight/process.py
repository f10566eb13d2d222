"""The processes of a preflight. The agent forks one for each future rank, and receives its checks through a pipe."""

from __future__ import annotations

import contextlib
import os
import signal
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.distributed import DistStoreError, PrefixStore, TCPStore

from launcher.config.schema import Backend
from launcher.failures.codes import CheckCode
from launcher.preflight import checks, together
from launcher.preflight.checks import Check, Level, Problem, check
from launcher.processes import orphans
from launcher.rendezvous.members import Rendezvous
from launcher.rendezvous.rank_environment import place_variables
from launcher.runs.events import Observation
from launcher.spec.plan import JobPlan
from launcher.worker import nccl_report, process_group

STORE = 30.0  # timeout of the preflight's TCPStore, in seconds
FILE = 10.0  # timeout for another node to write its file, in seconds
NEAR = 5.0  # timeout for other nodes to reach the same check, in seconds


def run(
    plan: JobPlan, attempt: Path, rendezvous: Rendezvous, index: int, place: int, timeout: float, pipe: Connection,
    agent: int,
) -> None:  # fmt: skip
    """Makes the checks of one future rank: the main function of a preflight process. Does not return.

    rendezvous: the agents that take part; its port is that of the preflight's TCPStore.
    index: index of this process's agent in `rendezvous.members`.
    place: index of the future rank among the ranks of its agent.
    timeout: timeout of the process group, in seconds.
    pipe: receives "begin", "go" and "end" from the agent, and sends the checks of each part.
    agent: process id of the agent, with which this process dies.
    """
    orphans.die_with_parent(agent)
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
    """The checks of one future rank. The first rank of a node also checks the node.

    For the arguments see `run`.
    """

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
        """Returns the results of the second part, with all ranks: clocks, an all_reduce, and the network of NCCL.

        timeout: timeout of the process group, in seconds.
        """
        name = "gloo" if self._plan.workload.backend == Backend.mpi.value else self._plan.workload.backend

        def reduce() -> Observation:
            backend = process_group._backend(name, self._device)
            where = torch.device("cpu") if self._plan.workload.backend == Backend.mpi.value else self._device
            group = PrefixStore("group", self._store)
            if backend == Backend.nccl.value:
                os.environ.update(nccl_report.log_variables(os.environ, self._nccl))
            together.join(backend, group, self._rank, self._world_size, where, timeout)
            return together.reduce(self._rank, self._world_size, where)

        found: list[Check] = []
        if self._leads:  # the port stays open until this process ends
            self._listener, address = together.open_port(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0])
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
            return together.clock(self._store, self._own == self._heads[0], len(self._heads))
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
        return together.reach(addresses, {head.index: head.host for head in others})

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
