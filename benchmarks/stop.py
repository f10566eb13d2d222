"""Time that the agreement of all ranks on stops and saves adds to a short training step.

    python -m benchmarks.stop

8 ranks take steps of 10 ms: an all_reduce of 64 KiB, and a wait, as for a GPU. They do so without `Resumable.boundary`
after each step and with it, in turns. The result is the median of the ratios of neighbouring turns. Another process
polls the memory that the ranks share with it, as their agent does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.measure import Result, interleaved, median_ratio, report
from benchmarks.ranks import in_ranks, slowest
from launcher import Env, Resumable
from launcher.agent.supervisor import AGREES, TICK
from launcher.worker import heartbeat
from launcher.worker.stop import CHECKPOINT, Settings
from launcher.worker.stop_agreement import AgentSide, LeaderSide

TARGET = 1.01
STEP = 0.010  # seconds of a step


def watch(shared: heartbeat.Pulse) -> None:
    """Agrees with the ranks on stops, as their agent does, until this process is killed."""
    agent, leader = AgentSide(0), LeaderSide([0])
    while True:
        for message in agent.look(shared.stops()):
            for reply in leader.receive(0, message):
                agent.receive(reply)
        shared.agent.show(agent.proposal, agent.committed)
        time.sleep(AGREES if agent.waits else TICK)


def compare(env: Env, shared: heartbeat.Pulse, folder: str, steps: int, repeats: int) -> dict[str, list[float]]:
    """Runs steps in turns; returns the seconds of a step in each turn, by "without" and "with" `boundary`."""
    heartbeat.take(shared.slot(env.rank))
    resumable = Resumable({}, env=env, run=Settings(replace(CHECKPOINT, dir=f"{folder}/it", every=10**9)))
    done = 0
    gradients = torch.zeros(16384, device=env.device)

    def step() -> None:
        began = time.perf_counter()
        dist.all_reduce(gradients)
        time.sleep(max(0.0, STEP - (time.perf_counter() - began)))

    def without() -> None:
        for _ in range(steps):
            step()

    def with_them() -> None:
        nonlocal done
        for _ in range(steps):
            step()
            done += 1
            resumable.boundary(done)

    def per_step(turn: Callable[[], None]) -> float:
        return slowest(turn) / steps

    contestants = {"without": without, "with": with_them}
    seconds = interleaved({name: partial(per_step, turn) for name, turn in contestants.items()}, repeats, warmup=2)
    resumable.close()
    return seconds


def results(world_size: int = 8, steps: int = 100, repeats: int = 31, device: str = "cpu") -> list[Result]:
    shared = heartbeat.Pulse(world_size)
    shared.clear(world_size)
    watcher = multiprocessing.get_context("fork").Process(target=watch, args=(shared,), daemon=True)
    watcher.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            seconds = in_ranks(compare, world_size, shared, folder, steps, repeats, device=device)
    finally:
        watcher.terminate()
        watcher.join()
    times = " and ".join(f"{statistics.median(seconds[name]) * 1e3:.3f}" for name in ("with", "without"))
    return [
        Result(
            f"step of 10 ms with agreement on stops / without, {world_size} ranks",
            median_ratio(seconds, "with", "without"),
            TARGET,
            f"{times} ms a step, median of {repeats} rounds of {steps} steps",
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="ranks")
    parser.add_argument("--steps", type=int, default=100, help="steps in a turn")
    parser.add_argument("--repeats", type=int, default=31, help="turns of each kind that are timed")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where gradients are")
    options = parser.parse_args()
    return report(results(options.ranks, options.steps, options.repeats, options.device))


if __name__ == "__main__":
    sys.exit(main())
