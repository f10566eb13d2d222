"""Injects random faults into a run, and compares its weights at the end with those of an undisturbed run.

    python -m tests.chaos.harness --faults 100 --seed 1 --backend local
    python -m tests.chaos.harness --faults 100 --seed 1 --backend slurm
    python -m tests.chaos.harness --faults 5 --seed 1 --kind "EIO of checkpoints" --kind "file server hangs"

After each fault (blows.py) the run must continue from the newest sound checkpoint and make new steps. Only retention
may remove sound checkpoints, and the run's events must blame the rank or the node that the fault has hit. At the end
the weights must be bitwise equal to those of an undisturbed run with one rank. `train.invariant` makes this possible,
although faults change the number of ranks. With an odd seed there are copies in memory too (checkpoint.memory=1).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.format import Manifest
from tests import warm_python
from tests.chaos import file_server
from tests.chaos.blows import HANG_TIMEOUT, HEARTBEAT, KEEP, Target, missing
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import ROOT, Launcher

RUN = "chaos"
PATIENCE = 240.0  # timeout in seconds for new steps after a fault
SAVE_EVERY = 20  # steps
TRAINING = (
    "workload=ddp_mnist", "workload.dataset=digits", "workload.log_every=1000000", "train.invariant=true",
    "workload.threads=1",
)  # fmt: skip
WORKS = ("queued", "running", "unconfirmed", "unknown")


class RunLost(AssertionError):
    """The run did not recover from a fault, lost a sound checkpoint, blamed the wrong one, or has other weights."""


@dataclass
class Blow:
    """A fault that was injected, and how the run recovered from it."""

    kind: str
    at: int  # the step at which the fault was injected
    recovered: float = 0.0  # seconds until the run made new steps
    repeated: int = 0  # steps that were repeated from a checkpoint
    met: bool = True  # whether the weakness of the file server, if it was one, affected a process


class Chaos(Target):
    """A run into which random faults are injected one after the other.

    Attributes:
        blows: the faults so far.
        kinds: the names of the faults to choose from; empty: all.
    """

    def __init__(
        self, launcher: Launcher, seed: int, slurm: SlurmCluster | None = None, kinds: Sequence[str] = ()
    ) -> None:
        """
        Args:
            launcher: the launcher for the run.
            seed: the seed of all random choices.
            slurm: the cluster of the run; None: it runs on this machine.
            kinds: the names of the faults to choose from; empty: all.
        """
        hook = {"PYTHONPATH": f"{ROOT / 'tests/chaos/hook'}:{ROOT}"}
        super().__init__(replace(launcher, environment={**launcher.environment, **hook}), RUN, seed, slurm)
        self.blows: list[Blow] = []
        self.kinds = sorted(kinds)

    def state(self) -> str:
        done = self.launcher("status", RUN, "--json")
        return str(json.loads(done.stdout)[0]["state"]) if done.returncode == 0 else "unconfirmed"

    # -- the run

    def start(self, epochs: int) -> None:
        words = (
            *TRAINING, f"workload.epochs={epochs}", "workload.entry=tests.chaos.slowly:main", f"run_id={RUN}",
            f"checkpoint.every_steps={SAVE_EVERY}", "nodes=2", "min_nodes=1", f"launch.hang_timeout={HANG_TIMEOUT}",
            f"launch.heartbeat={HEARTBEAT}", "time=1h", f"checkpoint.keep={KEEP}", f"checkpoint.memory={self.seed % 2}",
            "launch.rendezvous_timeout=30", "launch.start_timeout=60", "launch.grace=10",
            "resume.max_attempts=10000", "wait=false",
        )  # fmt: skip
        self.insist([*words, *self.launcher.overrides])

    def insist(self, words: list[str]) -> None:
        """Runs a command of the launcher, and kills it if it takes longer than a random time; then it is repeated.

        Raises:
            RunLost: the command fails.
        """
        for timeout in (self.random.uniform(0.1, 1.0), None):
            command = subprocess.Popen(
                [warm_python.python(), "-m", "launcher", *words], cwd=ROOT, env=self.launcher.environ,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            try:
                said, _ = command.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                command.communicate()
                continue
            if command.returncode and not any(word in said for word in (" is running", " is queued", " is done")):
                raise RunLost(f"{' '.join(words)}: {said}")
            return

    def strike(self) -> None:
        """Injects a random fault, waits until the run has recovered, and checks its checkpoints and blame.

        Raises:
            RunLost: the run did not recover, lost a checkpoint, or blamed the wrong rank or node.
        """
        self.until(lambda: bool(self.ranks()) and self.newest() is not None, "ranks at work", resume=True)
        time.sleep(self.random.uniform(0.0, 1.0))
        kind = self.random.choice(self.kinds or sorted(self.faults()))
        fault, before, was, blow = self.faults()[kind], self.sound(), self.told("now"), Blow(kind, self.step())
        self.blows.append(blow)
        weak = Path(self.path, "chaos", file_server.NAME)
        since, began = time.time(), time.monotonic()
        blame = fault.strike()

        def further() -> bool:
            now = self.told("now")
            new = now.get("life") != was["life"] or not (fault.ends_ranks or blame)
            saved = not fault.saves or self.newest() not in (None, *before)
            back = not fault.comes_back or now.get("world", 0) >= was["world"]
            return (new and saved and back and self.step() > blow.at + 1) or self.state() == "done"

        self.until(further, f"after {kind} at step {blow.at}", resume=True)
        blow.recovered = time.monotonic() - began
        if weak.exists():
            blow.met = file_server.met(self.path)
            file_server.recover(self.path)
            time.sleep(2.0)  # an agent that has hung writes now what it thinks of the others
        now = self.told("now")
        lowest = now["begun"] if now["life"] != was["life"] else None
        blow.repeated = max(0, blow.at - lowest) if lowest is not None else 0
        for name in self.to_restore:
            assert self.slurm is not None
            self.slurm.restore_node(name)
            self.slurm.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.to_restore.clear()
        self.require_sound(kind, before, lowest)
        event = self.blamed(since)
        if blame is not None and not (blame.fits(event) if event is not None else self.regrouped(since)):
            raise RunLost(f"after {kind} at step {blow.at} not {blame} was blamed, but {event}")

    def require_sound(self, kind: str, before: Mapping[Path, Manifest], lowest: int | None) -> None:
        """Checks that no sound checkpoint was passed over, quarantined or deleted after a fault.

        Args:
            kind: the name of the fault.
            before: the sound checkpoints before the fault.
            lowest: the step at which new ranks started; None: no ranks were restarted.

        Raises:
            RunLost: a sound checkpoint was.
        """
        safe = next((manifest.step for manifest in before.values()), None)
        if safe is not None and safe not in self.damaged and lowest is not None and lowest < safe:
            raise RunLost(f"after {kind} it went back to step {lowest}, and the checkpoint of step {safe} was sound")
        if gone := missing(before, self.sound(), self.damaged):
            raise RunLost(f"after {kind} the sound checkpoints {', '.join(gone)} are gone")
        aside = set(checkpoints.quarantined(self.path / "checkpoints").values())
        if not aside <= self.damaged:
            raise RunLost(f"after {kind} checkpoints were put aside of which only {sorted(self.damaged)} were damaged")

    def until(self, condition: Callable[[], bool], what: str, *, resume: bool = False) -> None:
        """Waits until a condition is true or the run is done.

        Args:
            condition: the condition.
            what: what is waited for, for the error text.
            resume: whether to resume the run when it has stopped, as its owner would.

        Raises:
            RunLost: the run has failed, or made no step for PATIENCE seconds.
        """
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
        """Lets the run finish undisturbed, and returns the hash of its weights."""
        (self.path / "chaos" / "fast").touch()
        self.until(lambda: self.state() == "done", "the end", resume=True)
        return weights(self.path)


def weights(run_dir: Path) -> str:
    return str(json.loads((run_dir / "result.json").read_text())["weights_sha256"])


def undisturbed(folder: Path, epochs: int) -> str:
    """Trains with one rank without faults, and returns the hash of the weights."""
    launcher = Launcher(folder / "undisturbed", {}, ["cluster=local"])
    done = launcher(*TRAINING, f"workload.epochs={epochs}", f"run_id={RUN}", "cluster=local", timeout=3000)
    if done.returncode:
        raise RuntimeError(f"the undisturbed run failed: {done.stdout}{done.stderr}")
    return weights(launcher.runs_dir / RUN)


def table(blows: list[Blow]) -> str:
    """Returns a table with a line for each kind of fault: how often it was injected, and how fast the run recovered."""
    lines = [f"{'fault':24}{'count':>6}{'recovered in (s)':>18}{'worst':>8}{'steps again':>13}"]
    for kind in sorted({blow.kind for blow in blows}):
        those = [blow for blow in blows if blow.kind == kind]
        times = [blow.recovered for blow in those]
        lines.append(
            f"{kind:24}{len(those):>6}{statistics.median(times):>18.1f}{max(times):>8.1f}"
            f"{max(blow.repeated for blow in those):>13}"
        )
    return "\n".join(lines)


def storm(chaos: Chaos, faults: int, epochs: int, folder: Path, minutes: float = math.inf) -> None:
    """Starts the run, injects faults, and compares the weights at the end with those of an undisturbed run.

    Args:
        chaos: the run.
        faults: the number of faults.
        epochs: the number of epochs of the training.
        folder: the directory for the undisturbed run.
        minutes: after so many minutes no more faults are injected.

    Raises:
        RunLost: the run did not survive a fault, or its weights differ.
    """
    over = time.monotonic() + 60 * minutes
    chaos.start(epochs)
    while len(chaos.blows) < faults and time.monotonic() < over:
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
    parser.add_argument("--epochs", type=int, help="of the training; empty: 10 for each fault, and at least 60")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which there are no more faults")
    parser.add_argument("--kind", action="append", default=[], help="a fault; empty: all of them")
    options = parser.parse_args()
    epochs = options.epochs or max(60, 10 * options.faults)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        if options.backend == "slurm":
            with SlurmCluster() as slurm:
                launcher = Launcher(folder / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
                return report(
                    Chaos(launcher, options.seed, slurm, options.kind), options.faults, epochs, folder, options.minutes
                )
        launcher = Launcher(folder / "runs", {}, ["cluster=local"])
        return report(
            Chaos(launcher, options.seed, kinds=options.kind), options.faults, epochs, folder, options.minutes
        )


def report(chaos: Chaos, faults: int, epochs: int, folder: Path, minutes: float = math.inf) -> int:
    try:
        storm(chaos, faults, epochs, folder, minutes)
    except RunLost as lost:
        kept = tempfile.mkdtemp(prefix="chaos-lost-")
        with contextlib.suppress(shutil.Error):  # the run goes on, and some of its files vanish
            shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True)
        print(f"LOST with seed {chaos.seed}: {lost}\n{chaos.launcher.printed()[-3000:]}\nThe run is kept in {kept}")
        return 1
    finally:
        chaos.launcher("cancel", RUN)
        if chaos.blows:
            print(table(chaos.blows))
    print(f"{len(chaos.blows)} faults, no run and no checkpoint lost, weights bitwise those of an undisturbed run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
