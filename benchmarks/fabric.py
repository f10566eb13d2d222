"""The time that `workload=collective` measures, against a hand-written loop around the same torch.distributed call.

    python -m benchmarks.fabric

Two ranks run on this machine, with gloo over the loopback interface. Each round measures both in turns, with the same
buffers: the workload's timing loop (`Run.times`), and a loop as in a user's script: a barrier, the clock, the call, the
clock. For both, the time of an iteration is that of the slowest rank. The 10th percentile over all iterations of all
rounds is compared: the time of an iteration that nothing else on the machine disturbed.

On a busy machine even that differs by some per cent between two runs of one loop. So the hand-written loop is measured
twice, as two contestants, and the workload is compared with the slower one. Both are shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.measure import Result, interleaved, report
from benchmarks.ranks import in_ranks
from launcher import Env
from launcher.config.schema import Collective
from launcher.formatting import format_size
from workloads.collective import Run, Sweep, make_groups
from workloads.collective_operations import BY_NAME
from workloads.measurement import slowest

SIZES = {1024: (20, 150), 2**20: (8, 100), 64 * 2**20: (1, 80)}  # bytes: iterations of a round, and rounds
OPERATIONS = ("all_reduce", "send_recv")
BY_HAND = ("by hand", "by hand again")
Seconds = dict[str, list[float]]


def by_hand(operation: str, data: torch.Tensor, out: torch.Tensor, count: int) -> list[float]:
    """Runs the hand-written loop; returns the seconds of each of `count` iterations on this rank."""
    other = 1 - dist.get_rank()
    times = []
    if operation == "all_reduce":
        for _ in range(count):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(data)
            times.append(time.perf_counter() - began)
    else:
        both = [dist.P2POp(dist.isend, data, other), dist.P2POp(dist.irecv, out, other)]
        for _ in range(count):
            dist.barrier()
            began = time.perf_counter()
            for work in dist.batch_isend_irecv(both):
                work.wait()
            times.append(time.perf_counter() - began)
    return times


def contest(env: Env, operation: str, size: int, count: int, rounds: int) -> Seconds:
    """Measures both loops in turns; returns the seconds of each iteration on the slowest rank, by "harness" (the
    workload) and by the names of BY_HAND."""
    config = Collective("collective", "", seed=0, op=operation, sizes=size, warmup=0)
    sweep = Sweep(config, BY_NAME[operation], make_groups("world", env), env)
    place = sweep.places[0]
    case = sweep.case(size // 4, place, size)
    buffers = sweep.operation.allocate(case, place)
    sweep.operation.fill(case, buffers)
    run = Run(sweep.config, sweep.operation, env, case, buffers)

    seconds: Seconds = {"harness": [], **{name: [] for name in BY_HAND}}

    def harness() -> float:
        return keep("harness", run.times(count))

    def hand(name: str) -> float:
        return keep(name, by_hand(operation, buffers.data, buffers.out, count))

    def keep(name: str, mine: list[float]) -> float:
        seconds[name] += slowest(mine, env)
        buffers.data.zero_()  # sums of sums would end in infinity
        return 0.0

    contestants: dict[str, Callable[[], float]] = {
        "harness": harness,
        **{name: partial(hand, name) for name in BY_HAND},
    }
    interleaved(contestants, rounds // 2)
    interleaved(dict(reversed(contestants.items())), rounds // 2)  # the second one of a round has warm caches
    return seconds


def undisturbed(seconds: list[float]) -> float:
    """Returns the 10th percentile."""
    return statistics.quantiles(seconds, n=10)[0]


def results(scale: float = 1) -> list[Result]:
    found = []
    for operation in OPERATIONS:
        for size, (count, rounds) in SIZES.items():
            seconds = in_ranks(contest, 2, operation, size, count, max(2, round(rounds * scale)))
            each = ", ".join(
                f"{name} {undisturbed(taken) * 1e6:.0f} us (median {statistics.median(taken) * 1e6:.0f})"
                for name, taken in seconds.items()
            )
            found.append(
                Result(
                    f"workload=collective, {operation} of {format_size(size)}iB / a loop by hand",
                    undisturbed(seconds["harness"]) / max(undisturbed(seconds[name]) for name in BY_HAND), 1.02,
                    f"{each}; {len(seconds['harness'])} iterations of each",
                )
            )  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="factor to the rounds: 3 takes three times as long")
    return report(results(parser.parse_args().scale))


if __name__ == "__main__":
    sys.exit(main())
