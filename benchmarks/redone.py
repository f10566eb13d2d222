"""Steps that are done again after ranks and nodes were killed, with copies in memory; and what the copies cost.

    python -m benchmarks.redone

Runs of ddp_mnist and fsdp_lm on four nodes of a Slurm cluster on this machine, two of them spare, with
checkpoint.memory=1: ranks are killed at random, and the agents of two nodes, the leader's first. What was done again is
in the event that each restart leaves. Each round must have the same number of ranks, and at the end the weights must be
those of a run that nothing has disturbed.

In one process the newest copy is damaged in all ways, and the one before must be loaded.

The cost is measured in one process, with steps of 50 ms that need no CPU: the time for which copies block them with
checkpoint.memory=auto, and the CPU time of a copy. Where no core is free, it is the time that training takes longer:
a rank on each core trains a small model, and steps behind a copy are compared with those of the same run without one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Result, report
from benchmarks.ranks import in_ranks
from benchmarks.restart import percentile
from launcher import Env
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.checkpoint.memory_format import Pair
from launcher.runs import event_files
from launcher.worker import shared_with_agent
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launch import Launcher
from tests.unit.checkpoint.test_memory import BAD

HEARTBEAT = 5  # seconds
PATIENCE = 90.0  # timeout of a restart, in seconds
PROCS = 2 if len(os.sched_getaffinity(0)) >= 4 else 1  # ranks of each of two nodes: each has a core, as on a cluster
RANKS = 2 * PROCS
STEP = 0.05  # seconds of a step, for the cost
BEHIND = 16  # steps from a copy on, in which it costs time where no core is free
ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "benchmark", (0,))
RUNS = {
    "ddp_mnist": ("workload=ddp_mnist", "workload.dataset=digits", "workload.log_every=20"),
    "fsdp_lm": (
        "workload=fsdp_lm", "workload.layers=2", "workload.width=64", "workload.heads=2", "workload.context=32",
        "workload.batch_size=8", "workload.eval_every=1000000", "workload.sample=0", "workload.log_every=20",
    ),
}  # fmt: skip
LENGTH = {"ddp_mnist": "workload.epochs", "fsdp_lm": "workload.steps"}


def results(
    kills: int = 200,
    sizes: Sequence[int] = (50_000_000, 500_000_000),
    steps: int = 200,
    names: Sequence[str] = tuple(RUNS),
    copies: int = 100,
    pairs: int = 300,
) -> list[Result]:
    found = []
    with SlurmCluster() as slurm, tempfile.TemporaryDirectory() as folder:
        for name in names:
            launcher = Launcher(Path(folder, name), {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
            found += disturbed(launcher, name, kills // len(names))
    found.append(damaged(copies))
    for size in sizes:
        found += cost(size, steps)
    found += [without_free_core(width, pairs) for width in (128, 1024)]
    return found


def disturbed(launcher: Launcher, name: str, kills: int) -> list[Result]:
    """Kills ranks and nodes in runs of a workload, at most 20 a run; returns restart times and steps done again."""
    chance = random.Random(name)  # noqa: S311
    ranks, nodes, redone, wrong, resized = list[float](), list[float](), list[int](), 0, 0
    wanted, length = "", 6 * min(kills, 20)
    for number in range(-(-kills // 20)):
        of_this = min(20, kills - 20 * number)
        if not wanted:
            wanted = _weights(launcher, _start(launcher, name, "undisturbed", length, spares=0))
        run = _start(launcher, name, f"disturbed-{number}", length, spares=2)
        for blow in range(of_this):
            agent = blow in (of_this // 3, 2 * of_this // 3) and of_this > 2
            time.sleep(chance.uniform(0.2, 0.6))
            seconds, event = _kill(run, chance, agent=agent, leader=blow == of_this // 3)
            (nodes if agent else ranks).append(seconds)
            redone.append(event["redone"])
        wrong += _weights(launcher, run) != wanted
        resized += len({event["round"] for event in _events(run, "met") if event["ranks"] != RANKS})
    shown = (
        f"{len(ranks)} ranks (of {RANKS}) and {len(nodes)} nodes killed; ranks: median {statistics.median(ranks):.2f} s"
    )
    return [
        Result(f"{name}: steps done again, most", max(redone), 1, shown, unit="steps"),
        Result(f"{name}: runs with other weights", wrong, 0, shown, unit="runs"),
        Result(f"{name}: rounds with another number of ranks", resized, 0, shown, unit="rounds"),
        Result(f"{name}: kill -9 of a rank to its state, p95", percentile(ranks, 95), 0.5, shown, unit="s"),
        *(
            [
                Result(
                    f"{name}: death of a node to its state, p95", percentile(nodes, 95), HEARTBEAT + 3, shown, unit="s"
                )
            ]
            if nodes
            else []
        ),
    ]


def _start(launcher: Launcher, name: str, run_id: str, length: int, spares: int) -> Path:
    done = launcher(
        *RUNS[name], f"{LENGTH[name]}={length * (10 if name == 'fsdp_lm' else 1)}", f"run_id={run_id}", "nodes=2",
        f"spares={spares}", f"procs_per_node={PROCS}", "checkpoint.memory=1", f"launch.heartbeat={HEARTBEAT}",
        "wait=false", "time=1h", "resume.how=never", "workload.threads=1",
        "launch.max_restarts=1000",  # a rank may be killed before its first step, several times in a row
        *launcher.overrides,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{run_id} did not start: {done.stdout}{done.stderr}")
    run = launcher.runs_dir / run_id
    _until(lambda: _events(run, "progress"), f"{run_id} to begin")
    return run


def _weights(launcher: Launcher, run: Path) -> str:
    done = launcher("wait", run.name, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{run.name} was lost: {done.stdout}{done.stderr}")
    return str(json.loads((run / "result.json").read_text())["weights_sha256"])


def _kill(run: Path, chance: random.Random, *, agent: bool, leader: bool) -> tuple[float, dict[str, Any]]:
    """Kills a rank, or an agent with its ranks; returns the seconds until ranks have their state, and that event."""
    before = len(_events(run, "restored"))
    _until(lambda: len(_ranks(run)) == RANKS, "all ranks")
    ranks = _ranks(run)
    killed = time.time()
    if agent:
        own = ranks[0][1] if leader else ranks[chance.randrange(RANKS)][1]
        os.kill(own, signal.SIGKILL)
    else:
        os.kill(ranks[chance.randrange(RANKS)][0], signal.SIGKILL)
    _until(lambda: len(_events(run, "restored")) > before, "the ranks to continue")
    event = _events(run, "restored")[before]
    return event["time"] - killed, {"redone": 1_000_000, **event}  # more than any target, where it is not known


def _events(run: Path, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in run.glob("attempts/*/events/*.jsonl"):
        found += [entry for entry in event_files.read(path, retry_seconds=0) if entry["event"] == kind]
    return sorted(found, key=lambda entry: entry["time"])


def _ranks(run: Path) -> dict[int, tuple[int, int]]:
    """Process ids of the ranks of a run and of their agents, by rank: their output goes to files that are named so."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            out = os.readlink(entry / "fd/1") if entry.name.isdigit() else ""
            if out.startswith(f"{run}/attempts/") and "/logs/rank-" in out:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(out.rpartition("rank-")[2].partition(".")[0])] = int(entry.name), parent
        except OSError:  # it has ended
            continue
    return found


def _until(condition: Any, what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.1)  # the times are those of the events


# -- damaged copies


def damaged(copies: int) -> Result:
    """Damages the newest copy so many times; returns how often something else than the copy before was loaded."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, _memory() as file:
        for number in range(copies + 1):
            os.environ["LAUNCHER_ROUND"] = str(number)
            state = {"weights": torch.zeros(100)}
            saved = Checkpointer(folder, ALONE, identity={}, memory=1)
            loaded = saved.load(state)
            sound = torch.equal(state["weights"], torch.full((100,), float(number)))
            wrong += not sound or (0 if loaded is None else loaded.step) != number
            for step in (number + 1, number + 2):
                state["weights"] = torch.full((100,), float(step))
                saved.keep(step, state)
            saved.close()
            newest = Pair(file, 2 * (number % 2)).newest  # replica, own
            header = newest.header()
            assert header is not None
            BAD[number % len(BAD)](newest, header, number)
    shown = ", ".join(damage.__name__ for damage in BAD)
    return Result(f"{copies} damaged copies: not the one before loaded", wrong, 0, shown, unit="times")


# -- the cost of copies


def cost(size: int, steps: int) -> list[Result]:
    """Makes copies of `size` bytes; returns the share of a step for which they block it, and their CPU time."""
    mb = f"{size // 10**6} MB"
    blocked, every, _ = _steps(size, steps, None)
    _, _, cpu = _steps(size, 20, 5)
    shown = f"steps of {STEP * 1000:g} ms; a copy every {every} steps"
    return [
        Result(f"{mb}: blocked, memory=auto", blocked / STEP, 0.01, shown, unit="of a step"),
        Result(f"{mb}: CPU of a copy", cpu / (size / 1e9), 2.0, "copied, and checksums computed", unit="s/GB"),
    ]


def _steps(size: int, steps: int, every: int | None) -> tuple[float, int, float]:
    """Returns seconds blocked a step once the interval is known, that interval, and CPU seconds of a copy."""
    with tempfile.TemporaryDirectory() as folder, _memory():
        saved = Checkpointer(folder, ALONE, identity={}, memory=every)
        state = {f"tensor-{number}": torch.randn(size // 80) for number in range(20)}
        blocked, cpu, copies = [], 0.0, 0
        for step in range(1, steps + 1):
            time.sleep(STEP)  # forward and backward
            began = time.perf_counter()
            saved.staged()  # before the optimizer's step
            used, due = time.process_time(), saved.keeps(step)
            saved.keep(step, state)
            blocked.append(time.perf_counter() - began)
            if due and every is not None:
                assert saved._memory is not None
                saved._memory.wait()
                cpu, copies = cpu + time.process_time() - used, copies + 1
        assert saved._memory is not None
        found = saved._memory.every
        saved.close()
    settled = blocked[steps // 4 :]
    return sum(settled) / len(settled), found, cpu / max(1, copies)


def without_free_core(width: int, pairs: int) -> Result:
    """Trains a model of this width on all cores; returns the share of time that checkpoint.memory=auto costs."""
    with _memory() as file, tempfile.TemporaryDirectory() as folder:
        found = in_ranks(_busy, len(os.sched_getaffinity(0)), file, folder, width, pairs)
    lost, every, step, size = found.tolist()
    shown = f"{lost * 1e3:.1f} ms a copy, every {every:g} steps of {step * 1e3:.1f} ms; {pairs} pairs"
    return Result(f"{size / 1e6:.1f} MB, no free core: memory=auto", 100 * lost / (every * step), 1, shown, unit="%")


def _busy(env: Env, file: int, folder: str, width: int, pairs: int) -> Tensor:
    """Returns seconds that a copy costs, steps between copies with auto, seconds of a step, and bytes of the state."""
    shared_with_agent.share_memory(file, env.rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data, labels = torch.randn(64, 64), torch.randint(10, (64,))

    def train(saved: Checkpointer, step: int, *, keep: bool) -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        optimizer.step()
        if keep:
            saved.keep(step, {"model": model, "optimizer": optimizer})
        return time.perf_counter() - began

    saved = Checkpointer(folder, env, identity={}, memory=None)
    for step in range(1, 6 * pairs):
        train(saved, step, keep=True)
    assert saved._memory is not None
    every = saved._memory.every
    saved.close()
    saved = Checkpointer(folder, env, identity={}, memory=BEHIND)
    # Neighbours: BEHIND steps from a copy on, and as many without; what else the machine does is in both
    seconds = [train(saved, step, keep=step % (2 * BEHIND) == 0) for step in range(2 * BEHIND * (pairs + 2))]
    saved.close()
    halves = torch.tensor(seconds[2 * BEHIND : -2 * BEHIND], dtype=torch.float64).reshape(pairs, 2, BEHIND).sum(2)
    lost = (halves[:, 0] - halves[:, 1]).mean()
    size = sum(tensor.nbytes for tensor in model.state_dict().values()) * 2  # with the momentum
    return torch.stack([lost, torch.tensor(every), halves[:, 1].mean() / BEHIND, torch.tensor(size)])


@contextmanager
def _memory() -> Iterator[int]:
    file = shared_with_agent.make_memory()
    shared_with_agent.share_memory(file, 0)
    try:
        yield file
    finally:
        del os.environ[shared_with_agent.MEMORY]
        os.close(file)


if __name__ == "__main__":
    sys.exit(report(results()))
