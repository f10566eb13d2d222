"""The faults that the harness injects into a run, and the rank or node that the run's events must name for each."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.folder import Retention
from launcher.checkpoint.format import Manifest
from launcher.runs.directory import Run
from launcher.schedulers.topology import expand
from tests.chaos import file_server
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import Launcher

HEARTBEAT, HANG_TIMEOUT = 5, 6  # launch.heartbeat and launch.hang_timeout of the run, in seconds
KEEP = 2  # checkpoint.keep of the run
PASSES_AFTER = 5.0  # seconds during which the file server returns errors, while ranks start and load
SCARCE = 3.0  # seconds during which an agent gets no file descriptor
NOBODY = ("left", "node_returned", "stopped_early")  # codes of restarts and ends that no rank or node causes


@dataclass(frozen=True)
class Blame:
    """The rank or the node that the first failure event after a fault must name. One match is enough.

    Attributes:
        rank: the rank; None: no rank matches.
        node: the node rank; None: no node matches.
    """

    rank: int | None = None
    node: int | None = None

    def fits(self, event: Mapping[str, Any]) -> bool:
        """Returns whether an event names this rank or this node."""
        return (self.rank is not None and event.get("rank") == self.rank) or (
            self.node is not None and event.get("node") == self.node
        )


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and what must follow before the run counts as recovered.

    Attributes:
        strike: injects the fault, and returns which rank or node must be blamed; None: any or none.
        ends_ranks: whether new ranks must make steps. If not, they must only if `strike` returned a `Blame`.
        saves: whether a new checkpoint must follow.
        comes_back: whether the run must have as many ranks as before.
    """

    strike: Callable[[], Blame | None]
    ends_ranks: bool = True
    saves: bool = False
    comes_back: bool = False


class Target:
    """A run into which faults are injected. It executes tests.chaos.slowly, which reports its ranks and steps.

    Attributes:
        launcher: the launcher that the run belongs to.
        seed: the seed of all random choices.
        slurm: the cluster of the run; None: it runs on this machine.
        path: the run directory.
        damaged: the steps of the checkpoints that faults have damaged.
        to_restore: the names of the nodes that faults have taken down.
    """

    def __init__(self, launcher: Launcher, run: str, seed: int, slurm: SlurmCluster | None = None) -> None:
        self.launcher, self.seed, self.slurm = launcher, seed, slurm
        self.random = random.Random(seed)
        self.path = launcher.runs_dir / run
        self.damaged: set[int] = set()
        self.to_restore: list[str] = []

    # -- the state of the run

    def told(self, name: str) -> dict[str, Any]:
        """Returns a file of RUN/chaos that the workload wrote; empty: there is none, or it cannot be read."""
        try:
            return dict(json.loads((self.path / "chaos" / name).read_text()))
        except (OSError, ValueError):
            return {}

    def step(self) -> int:
        return int(self.told("now").get("step", -1))

    def ranks(self) -> list[dict[str, Any]]:
        """Returns what each live rank reported, if they do steps by now: its rank and the pids of it and its agent."""
        now = self.told("now")
        ranks = [self.told(f"rank-{rank}") for rank in range(now.get("world", 0))]
        if ranks and ranks[0].get("pid") != now["pid"]:  # they start: before the first step none of them counts as hung
            return []
        return [rank for rank in ranks if rank and Path(f"/proc/{rank['pid']}").exists()]

    def watched(self) -> bool:
        """Returns whether the run has several agents, so that one that is lost is reported by another."""
        return int(self.told("now").get("world", 0)) > 1

    def sound(self) -> dict[Path, Manifest]:
        """Returns the manifests of the sound checkpoints by path, newest first."""
        return checkpoints.sound(self.path / "checkpoints") if self.path.exists() else {}

    def newest(self) -> Path | None:
        return next(iter(self.sound()), None)

    def job(self) -> str:
        return str(json.loads(self.launcher("status", self.path.name, "--json").stdout)[0]["job"])

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").read_text().splitlines()]

    def blamed(self, since: float) -> dict[str, Any] | None:
        """Returns the first failure event (`restart` or `fault`) since a time; None: there is none."""
        return next((event for event in self._failures(since) if event["code"] not in NOBODY), None)

    def regrouped(self, since: float) -> bool:
        """Returns whether ranks had to leave since a time because a node came back, whatever was wrong with them."""
        return any(event["code"] == "node_returned" for event in self._failures(since))

    def _failures(self, since: float) -> list[dict[str, Any]]:
        events = [event for attempt in Run(self.path).attempts()[-2:] for event in attempt.events()]
        found = [event for event in events if event["event"] in ("restart", "fault") and event["time"] >= since]
        return sorted(found, key=lambda event: float(event["time"]))

    # -- the faults: each method injects one, and returns which rank or node must be blamed

    def signal_rank(self, number: signal.Signals) -> Blame | None:
        rank = self.random.choice(self.ranks() or [{}])
        return Blame(rank=rank["rank"]) if rank and _kill(rank["pid"], number) else None

    def signal_agent(self, number: signal.Signals) -> Blame | None:
        rank = self.random.choice(self.ranks() or [{}])
        node = _node_of(rank["agent"]) if rank else None
        watched = self.watched()
        return Blame(node=node) if rank and _kill(rank["agent"], number) and watched else None

    def stop_agent_for_a_while(self) -> Blame | None:
        """Stops an agent (SIGSTOP) for two heartbeat timeouts, so that the others lose it until it comes back."""
        rank = self.random.choice(self.ranks() or [{}])
        node = _node_of(rank["agent"]) if rank else None
        watched = self.watched()
        if not rank or not _kill(rank["agent"], signal.SIGSTOP):
            return None
        time.sleep(2 * HEARTBEAT)
        _kill(rank["agent"], signal.SIGCONT)
        return Blame(node=node) if watched else None

    def everything(self) -> None:
        """Kills all processes of the job at once, as a power failure does; on Slurm, requeues the job."""
        if self.slurm is not None:
            self.slurm.run("scontrol", "requeue", self.job())
            return
        process = next(event for event in reversed(self.journal()) if event["event"] == "process")
        victims = {process["pid"], *(rank[name] for rank in self.ranks() for name in ("agent", "pid"))}
        for pid in victims:
            _kill(pid, signal.SIGKILL)

    def deleted(self) -> None:
        if self.slurm is None:
            self.launcher("cancel", self.path.name)
        else:
            self.slurm.run("scancel", self.job())

    def file(self, name: str) -> None:
        (self.path / name).touch()

    def damage(self, how: str) -> None:
        """Damages the newest checkpoint, and kills a rank, so that all ranks have to load a checkpoint.

        Args:
            how: `cut off` truncates its largest file, `flipped` inverts a bit of it.
        """
        newest = self.newest()
        if newest is None:
            return
        self.damaged.add(checkpoints.step_of(newest.name) or 0)
        victim = max(newest.iterdir(), key=lambda path: path.stat().st_size)
        with open(victim, "r+b") as file:
            if how == "cut off":
                file.truncate(victim.stat().st_size // 2)
            else:
                file.seek(victim.stat().st_size // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
        self.signal_rank(signal.SIGKILL)

    def full_disk(self) -> None:
        """Limits the size of rank 0's files (RLIMIT_FSIZE) while it saves, which simulates a full disk."""
        pid = self.told("now").get("pid")
        with limit(pid, resource.RLIMIT_FSIZE, 20_000):
            self.file("save")
            time.sleep(2)

    def no_descriptors(self) -> Blame | None:
        """Takes all file descriptors from an agent while it has to restart a rank.

        It can open no file, accept no connection and start no rank.
        """
        rank = self.random.choice(self.ranks() or [{}])
        if not rank:
            return None
        with limit(rank["agent"], resource.RLIMIT_NOFILE, _lowest_free(rank["agent"])):
            hit = _kill(rank["pid"], signal.SIGKILL)
            time.sleep(SCARCE)
        return Blame(rank=rank["rank"]) if hit else None

    def no_memory_for_a_copy(self) -> None:
        """Makes a random rank run out of memory when it copies its state for the next checkpoint."""
        if ranks := self.ranks():
            (self.path / "chaos" / f"no-memory-{self.random.choice(ranks)['rank']}").touch()
            self.file("save")

    def checkpoints_unreadable(self, number: int, *, one: bool) -> Blame | None:
        """Makes reads of checkpoints fail for PASSES_AFTER seconds, and kills a rank, so that ranks have to load one.

        Args:
            number: the errno of the failures.
            one: whether only the reads of one rank fail, and not those of all.
        """
        rank = self.random.choice(self.ranks() or [{}]).get("rank") if one else None
        file_server.weaken(self.path, number, PASSES_AFTER, parts=["/checkpoints"], rank=rank)
        return self.signal_rank(signal.SIGKILL)

    def run_unreadable(self, number: int) -> None:
        """Makes reads of the run's record, lease and rounds fail for PASSES_AFTER seconds, and restarts the job.

        Args:
            number: the errno of the failures.
        """
        file_server.weaken(self.path, number, PASSES_AFTER, parts=["/record.json", "/lease", "/rounds"])
        self.everything()

    def file_server_hangs(self) -> Blame | None:
        """Makes file operations of one agent and its ranks hang for twice the hang timeout."""
        rank = self.random.choice(self.ranks() or [{}])
        if not rank:
            return None
        node, seconds = _node_of(rank["agent"]), 2.0 * HANG_TIMEOUT
        watched = self.watched()
        file_server.weaken(self.path, file_server.HANGS, seconds, agent=rank["agent"])
        time.sleep(seconds)
        return Blame(rank=rank["rank"], node=node) if watched else None

    def node(self) -> None:
        """Takes down a node other than the job's first one, with all processes on it."""
        assert self.slurm is not None
        first, _, nodes = self.slurm.run("squeue", "--noheader", "--jobs", self.job(), "--format=%B|%N").partition("|")
        victims = [node for node in expand(nodes.strip()) if node != first]
        if victims and self.watched():
            self.slurm.fail_node(victims[-1], told=True)
            self.to_restore.append(victims[-1])
        else:  # the other nodes are down already, or have no ranks any more
            self.signal_rank(signal.SIGKILL)

    def faults(self) -> dict[str, Fault]:
        """Returns all faults by name."""
        both = {
            "SIGKILL of a rank": Fault(lambda: self.signal_rank(signal.SIGKILL)),
            "SIGSTOP of a rank": Fault(lambda: self.signal_rank(signal.SIGSTOP)),
            "SIGTERM of a rank": Fault(_nobody(self.signal_rank, signal.SIGTERM)),
            "SIGKILL of an agent": Fault(lambda: self.signal_agent(signal.SIGKILL)),
            "SIGTERM of an agent": Fault(_nobody(self.signal_agent, signal.SIGTERM)),
            "SIGSTOP of an agent": Fault(self.stop_agent_for_a_while, ends_ranks=False, comes_back=True),
            "requeue" if self.slurm else "SIGKILL of everything": Fault(_nobody(self.everything)),
            "scancel" if self.slurm else "cancel": Fault(_nobody(self.deleted)),
            "stop file": Fault(_nobody(self.file, "stop")),
            "save file": Fault(_nobody(self.file, "save"), ends_ranks=False, saves=True),
            "checkpoint cut off": Fault(_nobody(self.damage, "cut off")),
            "checkpoint flipped": Fault(_nobody(self.damage, "flipped")),
            "disk full": Fault(_nobody(self.full_disk), ends_ranks=False, saves=True),
            "no memory to save": Fault(_nobody(self.no_memory_for_a_copy), ends_ranks=False, saves=True),
            "no descriptors": Fault(self.no_descriptors),
            "EIO of checkpoints": Fault(lambda: self.checkpoints_unreadable(errno.EIO, one=False)),
            "ESTALE in one rank": Fault(lambda: self.checkpoints_unreadable(errno.ESTALE, one=True)),
            "EIO of the run": Fault(_nobody(self.run_unreadable, errno.EIO)),
            "file server hangs": Fault(self.file_server_hangs, ends_ranks=False),
        }
        return {**both, "node lost": Fault(_nobody(self.node))} if self.slurm else both


def missing(before: Mapping[Path, Manifest], after: Mapping[Path, Manifest], damaged: set[int]) -> list[str]:
    """Returns the names of sound checkpoints that are gone without a permitted reason. Pure.

    Retention may remove checkpoints that are not among the newest KEEP of their lineage, and damaged ones may go.

    Args:
        before: the sound checkpoints before a fault.
        after: the sound checkpoints after it.
        damaged: the steps of checkpoints that faults have damaged.
    """
    if not before:
        return []
    known = {**before, **after}
    last = max(known.values(), key=lambda manifest: manifest.age)
    may_go = Retention(KEEP).surplus(known, last)
    return sorted(
        path.name
        for path, manifest in before.items()
        if path not in after and path not in may_go and manifest.step not in damaged
    )


def _nobody(strike: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """Returns a function that calls `strike`, and returns None: nobody must be blamed."""

    def struck() -> None:
        strike(*arguments)

    return struck


@contextlib.contextmanager
def limit(pid: int | None, what: int, value: int) -> Any:
    """Lowers a soft resource limit of another process while the context is open.

    Args:
        pid: the process; None: do nothing.
        what: the limit, such as resource.RLIMIT_NOFILE.
        value: the soft limit.
    """
    before = None
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            before = resource.prlimit(pid, what)
            resource.prlimit(pid, what, (value, before[1]))
    try:
        yield
    finally:
        if pid and before is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, what, before)


def _lowest_free(pid: int) -> int:
    """Returns the lowest free file descriptor of a process: the one that it would get next."""
    try:
        taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return 0
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _node_of(agent: int) -> int | None:
    """Returns the node rank of an agent from its environment; None: the agent has ended."""
    try:
        words = Path(f"/proc/{agent}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    values = dict(word.partition("=")[::2] for word in words)
    number = values.get("SLURM_NODEID", values.get("LAUNCHER_NODE", values.get("LAUNCHER_TASK")))
    return None if number is None else int(number)


def _kill(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
