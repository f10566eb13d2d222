"""The faults of the harness: what each one does to a run, and who is to be blamed for it."""

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
from launcher.checkpoint import retention
from launcher.checkpoint.format import Manifest
from launcher.runs.directory import Run
from launcher.schedulers.hostlist import expand
from tests.chaos import file_server
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import Launcher

HEARTBEAT, HANG_TIMEOUT = 5, 6  # seconds, of the run
KEEP = 2  # checkpoints
PASSES_AFTER = 5.0  # seconds in which the file server gives errors, and ranks start and load meanwhile
SCARCE = 3.0  # seconds in which an agent gets no descriptor
NOBODY = ("left", "node_returned", "stopped_early")  # codes of restarts and ends that are nobody's fault


@dataclass(frozen=True)
class Blame:
    """Who is to be named by the first event of a failure: this rank or this node; None: it does not matter."""

    rank: int | None = None
    node: int | None = None

    def fits(self, event: Mapping[str, Any]) -> bool:
        """Whether an event names it."""
        return (self.rank is not None and event.get("rank") == self.rank) or (
            self.node is not None and event.get("node") == self.node
        )


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        strike: does it; whom to blame for what follows, None for nobody.
        ends_ranks: the run is only further when new ranks work; else that is so when somebody is to be blamed.
        saves: a new checkpoint must follow.
        comes_back: as many ranks as before must follow.
    """

    strike: Callable[[], Blame | None]
    ends_ranks: bool = True
    saves: bool = False
    comes_back: bool = False


class Target:
    """A run as the faults see it.

    Attributes:
        damaged: steps of the checkpoints that were damaged.
        to_restore: names of the nodes that were taken away.
    """

    def __init__(self, launcher: Launcher, run: str, seed: int, slurm: SlurmCluster | None = None) -> None:
        self.launcher, self.seed, self.slurm = launcher, seed, slurm
        self.random = random.Random(seed)
        self.path = launcher.runs_dir / run
        self.damaged: set[int] = set()
        self.to_restore: list[str] = []

    # -- what is seen

    def told(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / "chaos" / name).read_text()))
        except (OSError, ValueError):
            return {}

    def step(self) -> int:
        return int(self.told("now").get("step", -1))

    def ranks(self) -> list[dict[str, Any]]:
        """The ranks of the attempt that runs."""
        now = self.told("now")
        ranks = [self.told(f"rank-{rank}") for rank in range(now.get("world", 0))]
        return [rank for rank in ranks if rank and Path(f"/proc/{rank['pid']}").exists()]

    def watched(self) -> bool:
        """Whether there is another agent, which sees what becomes of one."""
        return int(self.told("now").get("world", 0)) > 1

    def sound(self) -> dict[Path, Manifest]:
        """The sound checkpoints, newest first."""
        return checkpoints.sound(self.path / "checkpoints") if self.path.exists() else {}

    def newest(self) -> Path | None:
        return next(iter(self.sound()), None)

    def job(self) -> str:
        return str(json.loads(self.launcher("status", self.path.name, "--json").stdout)[0]["job"])

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").read_text().splitlines()]

    def blamed(self, since: float) -> dict[str, Any] | None:
        """The first event of a failure since some time."""
        events = [event for attempt in Run(self.path).attempts()[-2:] for event in attempt.events()]
        failures = [
            event
            for event in events
            if event["event"] in ("restart", "fault") and event["time"] >= since and event["code"] not in NOBODY
        ]
        return min(failures, key=lambda event: float(event["time"]), default=None)

    # -- the faults

    def signal_rank(self, number: signal.Signals) -> Blame | None:
        rank = self.random.choice(self.ranks() or [{}])
        return Blame(rank=rank["rank"]) if rank and _kill(rank["pid"], number) else None

    def signal_agent(self, number: signal.Signals) -> Blame | None:
        rank = self.random.choice(self.ranks() or [{}])
        node = _node_of(rank["agent"]) if rank else None
        watched = self.watched()
        return Blame(node=node) if rank and _kill(rank["agent"], number) and watched else None

    def stop_agent_for_a_while(self) -> Blame | None:
        """It is lost to the others, and then comes back."""
        rank = self.random.choice(self.ranks() or [{}])
        node = _node_of(rank["agent"]) if rank else None
        watched = self.watched()
        if not rank or not _kill(rank["agent"], signal.SIGSTOP):
            return None
        time.sleep(2 * HEARTBEAT)
        _kill(rank["agent"], signal.SIGCONT)
        return Blame(node=node) if watched else None

    def everything(self) -> None:
        """The whole job at once, as by a power failure."""
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
        """The newest checkpoint, and then the ranks have to load one."""
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
        """No file of rank 0 may grow beyond some bytes, while it is to save."""
        pid = self.told("now").get("pid")
        with limit(pid, resource.RLIMIT_FSIZE, 20_000):
            self.file("save")
            time.sleep(2)

    def no_descriptors(self) -> Blame | None:
        """An agent can open no file, take no connection and start no rank, while a rank of it has to start again."""
        rank = self.random.choice(self.ranks() or [{}])
        if not rank:
            return None
        with limit(rank["agent"], resource.RLIMIT_NOFILE, _lowest_free(rank["agent"])):
            hit = _kill(rank["pid"], signal.SIGKILL)
            time.sleep(SCARCE)
        return Blame(rank=rank["rank"]) if hit else None

    def no_memory_for_a_copy(self) -> None:
        """One rank fails in the copy for the next checkpoint."""
        if ranks := self.ranks():
            (self.path / "chaos" / f"no-memory-{self.random.choice(ranks)['rank']}").touch()
            self.file("save")

    def checkpoints_unreadable(self, number: int, *, one: bool) -> Blame | None:
        """For a while, while ranks have to load one; of all ranks or of one."""
        rank = self.random.choice(self.ranks() or [{}]).get("rank") if one else None
        file_server.weaken(self.path, number, PASSES_AFTER, parts=["/checkpoints"], rank=rank)
        return self.signal_rank(signal.SIGKILL)

    def run_unreadable(self, number: int) -> None:
        """Record, lease and rounds, for a while when a new attempt begins."""
        file_server.weaken(self.path, number, PASSES_AFTER, parts=["/record.json", "/lease", "/rounds"])
        self.everything()

    def file_server_hangs(self) -> Blame | None:
        """For the agent and the ranks of one node, for longer than ranks may do no step."""
        rank = self.random.choice(self.ranks() or [{}])
        if not rank:
            return None
        node, seconds = _node_of(rank["agent"]), 2.0 * HANG_TIMEOUT
        watched = self.watched()
        file_server.weaken(self.path, file_server.HANGS, seconds, agent=rank["agent"])
        time.sleep(seconds)
        return Blame(rank=rank["rank"], node=node) if watched else None

    def node(self) -> None:
        """The daemon of a node that is not the first of the job, and all that runs there; see docs/restarts.md."""
        assert self.slurm is not None
        first, _, nodes = self.slurm.run("squeue", "--noheader", "--jobs", self.job(), "--format=%B|%N").partition("|")
        victims = [node for node in expand(nodes.strip()) if node != first]
        if victims and self.watched():
            self.slurm.fail_node(victims[-1], told=True)
            self.to_restore.append(victims[-1])
        else:  # the others are gone already, or have no ranks any more
            self.signal_rank(signal.SIGKILL)

    def faults(self) -> dict[str, Fault]:
        """All faults by name."""
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
    """The checkpoints that were sound before, are not there any more, and should be. Pure.

    Retention may have removed what is neither damaged nor one of the newest KEEP of its lineage.
    """
    if not before:
        return []
    known = {**before, **after}
    last = max(known.values(), key=retention.age)
    may_go = retention.surplus(known, last, KEEP)
    return sorted(
        path.name
        for path, manifest in before.items()
        if path not in after and path not in may_go and manifest.step not in damaged
    )


def _nobody(strike: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """A fault that is blamed on nobody."""

    def struck() -> None:
        strike(*arguments)

    return struck


@contextlib.contextmanager
def limit(pid: int | None, what: int, value: int) -> Any:
    """Another process may have only so much of something, for a while."""
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
    """The number of the next descriptor that a process would get."""
    try:
        taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return 0
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _node_of(agent: int) -> int | None:
    """The node rank of an agent, as the job script or srun has told it."""
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
