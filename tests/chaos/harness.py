"""A seeded schedule of faults against one run, whose end is compared with that of an undisturbed one.

    python -m tests.chaos.harness --faults 100 --seed 1 --backend local
    python -m tests.chaos.harness --faults 100 --seed 1 --backend slurm

After each fault the run must get further than it was, from the newest checkpoint that was sound, and in the end its
weights must be bitwise those of a run of one rank that nobody disturbed. `train.invariant` makes that comparable, for
faults also change the number of ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.node.hostlist import expand
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import PYTHON, ROOT, Launcher

RUN = "chaos"
PATIENCE = 240.0  # seconds for a run to get further after a fault
SAVE_EVERY = 20  # steps
TRAINING = (
    "workload=ddp_mnist", "workload.dataset=digits", "workload.log_every=1000000", "train.invariant=true",
    "workload.threads=1",
)  # fmt: skip
HARMLESS = ("save file", "disk full")  # all others end ranks, so that the run is only further when new ones work
WORKS = ("queued", "running", "unconfirmed", "unknown")


class RunLost(AssertionError):
    """A fault that the run, or one of its checkpoints, has not survived."""


@dataclass
class Blow:
    """One fault and what came of it."""

    kind: str
    at: int  # steps that were done
    recovered: float = 0.0  # seconds until it was further
    repeated: int = 0  # steps that had to be done again


@dataclass
class Chaos:
    """One run under fire."""

    launcher: Launcher
    seed: int
    slurm: SlurmCluster | None = None
    blows: list[Blow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.path = self.launcher.runs_dir / RUN
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

    def newest(self) -> Path | None:
        return next(iter(checkpoints.sound(self.path / "checkpoints")), None) if self.path.exists() else None

    def state(self) -> str:
        done = self.launcher("status", RUN, "--json")
        return str(json.loads(done.stdout)[0]["state"]) if done.returncode == 0 else "unconfirmed"

    # -- the faults

    def signal_rank(self, number: signal.Signals) -> None:
        if ranks := self.ranks():
            _kill(self.random.choice(ranks)["pid"], number)

    def signal_agent(self, number: signal.Signals) -> None:
        if ranks := self.ranks():
            _kill(self.random.choice(ranks)["agent"], number)

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
            self.launcher("cancel", RUN)
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
        if not pid:
            return
        try:
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (20_000, before[1]))
            self.file("save")
            time.sleep(2)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        except (ProcessLookupError, PermissionError):
            pass

    def node(self) -> None:
        """The daemon of a node that is not the first of the job, and all that runs there; see docs/restarts.md."""
        assert self.slurm is not None
        first, _, nodes = self.slurm.run("squeue", "--noheader", "--jobs", self.job(), "--format=%B|%N").partition("|")
        if victims := [node for node in expand(nodes.strip()) if node != first]:
            self.slurm.fail_node(victims[-1], told=True)
            self.to_restore.append(victims[-1])
        else:  # the others are gone already
            self.signal_rank(signal.SIGKILL)

    def faults(self) -> dict[str, Callable[[], None]]:
        """All faults by name."""
        both: dict[str, Callable[[], None]] = {
            "SIGKILL of a rank": lambda: self.signal_rank(signal.SIGKILL),
            "SIGSTOP of a rank": lambda: self.signal_rank(signal.SIGSTOP),
            "SIGTERM of a rank": lambda: self.signal_rank(signal.SIGTERM),
            "SIGKILL of an agent": lambda: self.signal_agent(signal.SIGKILL),
            "SIGTERM of an agent": lambda: self.signal_agent(signal.SIGTERM),
            "requeue" if self.slurm else "SIGKILL of everything": self.everything,
            "scancel" if self.slurm else "cancel": self.deleted,
            "stop file": lambda: self.file("stop"),
            "save file": lambda: self.file("save"),
            "checkpoint cut off": lambda: self.damage("cut off"),
            "checkpoint flipped": lambda: self.damage("flipped"),
            "disk full": self.full_disk,
        }
        return {**both, "node lost": self.node} if self.slurm else both

    # -- the run

    def start(self, epochs: int) -> None:
        words = (
            *TRAINING, f"workload.epochs={epochs}", "workload.entry=tests.chaos.slowly:main", f"run_id={RUN}",
            f"checkpoint.every_steps={SAVE_EVERY}", "nodes=2", "min_nodes=1", "launch.hang_timeout=6",
            "launch.heartbeat=5", "time=1h",
            "launch.rendezvous_timeout=30", "launch.grace=10", "resume.max_attempts=10000", "wait=false",
        )  # fmt: skip
        self.insist([*words, *self.launcher.always])

    def insist(self, words: list[str]) -> None:
        """Runs a command of the launcher whose process may be killed on the way; then it is repeated."""
        for patience in (self.random.uniform(0.1, 1.0), None):
            command = subprocess.Popen(
                [PYTHON, "-m", "launcher", *words], cwd=ROOT, env=self.launcher.environ, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            try:
                said, _ = command.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                command.kill()
                command.communicate()
                continue
            if command.returncode and not any(word in said for word in (" is running", " is queued", " is done")):
                raise RunLost(f"{' '.join(words)}: {said}")
            return

    def strike(self) -> None:
        """One fault, and the time until the run is further than it was."""
        self.until(lambda: bool(self.ranks()) and self.newest() is not None, "ranks at work", resume=True)
        time.sleep(self.random.uniform(0.0, 1.0))
        kind = self.random.choice(sorted(self.faults()))
        newest, blow = self.newest(), Blow(kind, self.step())
        self.blows.append(blow)
        safe = checkpoints.step_of(newest.name) if newest else None
        life, began = self.told("now")["life"], time.monotonic()
        self.faults()[kind]()
        lowest: int | None = None  # where new ranks went on; a checkpoint may be a step ahead of what the old ones told

        def further() -> bool:
            nonlocal lowest
            now = self.told("now")
            if now.get("life") != life and "step" in now:
                lowest = now["step"] if lowest is None else min(lowest, now["step"])
            new = now.get("life") != life or kind in HARMLESS
            return (new and self.step() > blow.at + 1) or self.state() == "done"

        self.until(further, f"after {kind} at step {blow.at}", resume=True)
        blow.recovered = time.monotonic() - began
        blow.repeated = max(0, blow.at - lowest) if lowest is not None else 0
        for name in self.to_restore:
            assert self.slurm is not None
            self.slurm.restore_node(name)
            self.slurm.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.to_restore.clear()
        if safe is not None and safe not in self.damaged and lowest is not None and lowest < safe:
            raise RunLost(f"after {kind} it went back to step {lowest}, and the checkpoint of step {safe} was sound")

    def until(self, condition: Callable[[], bool], what: str, *, resume: bool = False) -> None:
        """Waits while the run gets further, and resumes one that is over and not done, as its owner would."""
        give_up, look, furthest = time.monotonic() + PATIENCE, 0.0, self.step()
        while not condition():
            if self.step() > furthest:
                give_up, furthest = time.monotonic() + PATIENCE, self.step()
            if time.monotonic() > look:
                look = time.monotonic() + 1.0
                state = self.state()
                if state == "failed":
                    raise RunLost(f"{what}: the run has failed: {self.launcher('status', RUN).stdout}")
                if state == "done":
                    return
                if resume and state not in WORKS:
                    self.insist(["resume", RUN, "wait=false"])
            if time.monotonic() > give_up:
                raise RunLost(f"{what}: nothing for {PATIENCE:g} s; {self.launcher('status', RUN).stdout}")
            time.sleep(0.05)

    def finish(self) -> str:
        """Lets the run come to its end; its weights."""
        (self.path / "chaos" / "fast").touch()
        self.until(lambda: self.state() == "done", "the end", resume=True)
        return weights(self.path)

    def job(self) -> str:
        return str(json.loads(self.launcher("status", RUN, "--json").stdout)[0]["job"])

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").read_text().splitlines()]


def weights(run_dir: Path) -> str:
    return str(json.loads((run_dir / "result.json").read_text())["weights_sha256"])


def undisturbed(folder: Path, epochs: int) -> str:
    """The weights of one rank that nobody disturbs."""
    launcher = Launcher(folder / "undisturbed", {}, ["cluster=local"])
    done = launcher(*TRAINING, f"workload.epochs={epochs}", f"run_id={RUN}", "cluster=local", timeout=3000)
    if done.returncode:
        raise RuntimeError(f"the undisturbed run failed: {done.stdout}{done.stderr}")
    return weights(launcher.runs_dir / RUN)


def table(blows: list[Blow]) -> str:
    """A line for each kind of fault."""
    lines = [f"{'fault':24}{'count':>6}{'recovered in (s)':>18}{'worst':>8}{'steps again':>13}"]
    for kind in sorted({blow.kind for blow in blows}):
        those = [blow for blow in blows if blow.kind == kind]
        times = [blow.recovered for blow in those]
        lines.append(
            f"{kind:24}{len(those):>6}{statistics.median(times):>18.1f}{max(times):>8.1f}"
            f"{max(blow.repeated for blow in those):>13}"
        )
    return "\n".join(lines)


def storm(chaos: Chaos, faults: int, epochs: int, folder: Path) -> None:
    """Faults until there were enough, then the comparison.

    Raises:
        RunLost: the run, a sound checkpoint or the equality of the weights.
    """
    chaos.start(epochs)
    for _ in range(faults):
        chaos.strike()
        print(f"{len(chaos.blows):4} {chaos.blows[-1]}", flush=True)
        if chaos.state() == "done":
            raise RunLost(f"it was done after {len(chaos.blows)} faults: use more --epochs")
    mine, theirs = chaos.finish(), undisturbed(folder, epochs)
    if mine != theirs:
        raise RunLost(f"its weights are {mine}, and those of an undisturbed run {theirs}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("local", "slurm"), default="local")
    parser.add_argument("--epochs", type=int, help="of the training; empty: 20 for each fault")
    options = parser.parse_args()
    epochs = options.epochs or 20 * options.faults
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        if options.backend == "slurm":
            with SlurmCluster() as slurm:
                launcher = Launcher(folder / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
                return report(Chaos(launcher, options.seed, slurm), options.faults, epochs, folder)
        return report(
            Chaos(Launcher(folder / "runs", {}, ["cluster=local"]), options.seed), options.faults, epochs, folder
        )


def report(chaos: Chaos, faults: int, epochs: int, folder: Path) -> int:
    try:
        storm(chaos, faults, epochs, folder)
    except RunLost as lost:
        print(f"LOST with seed {chaos.seed}: {lost}\n{chaos.launcher.printed()[-3000:]}")
        return 1
    finally:
        chaos.launcher("cancel", RUN)
        if chaos.blows:
            print(table(chaos.blows))
    print(f"{faults} faults, no run and no checkpoint lost, weights bitwise those of an undisturbed run")
    return 0


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
