"""Time to save and load a checkpoint, against torch.save and torch.load of the same state.

    python -m benchmarks.checkpoint

Two ranks on this machine have the same state. It is compared with a simple training loop: rank 0 calls torch.save,
fsync and rename, while the other rank waits. The contestants take turns.

- blocked: seconds for which `save`, and `staged` directly after it, block training; nothing is computed in between,
  which is the worst case
- whole: seconds until the checkpoint is published (`wait=True`), with manifest, checksums and renames; has no target
- loading: `Checkpointer.load` into existing tensors, with verified checksums, against torch.load with weights_only=True
  of the file that torch.save wrote; both from the page cache, in both ranks at the same time. Threads compare the
  checksums, so the ratio depends on idle cores: 1.2 to 1.4 on two quiet ones, 1.6 beside two busy loops

TMPDIR chooses the file system.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.measure import Result, interleaved, median_ratio, medians, report
from benchmarks.ranks import device_of
from launcher import Env
from launcher.checkpoint.checkpointer import Checkpointer

RANKS = 2
TENSOR = 12_500_000  # bytes of each tensor of the large state
Seconds = dict[str, list[float]]


def state_of(size: int, device: torch.device) -> dict[str, dict[str, torch.Tensor]]:
    """Returns weights and two moments of an optimizer, together `size` bytes."""
    torch.manual_seed(0)  # the same on all ranks, as replicas are
    count = max(1, size // 3 // TENSOR)
    elements = size // 3 // count // 4
    return {
        part: {f"layer{n}": torch.rand(elements, device=device) for n in range(count)}
        for part in ("model", "first", "second")
    }


class Contest:
    """Saves and loads one state on one rank. All ranks call its methods in the same order.

    Args:
        size: bytes of the state.
        env: this rank.
        folder: directory of the checkpoints.
    """

    def __init__(self, size: int, env: Env, folder: Path) -> None:
        self.env, self.folder = env, folder
        self.state = state_of(size, env.device)
        self.step = 0
        self.checkpointer = Checkpointer(folder / "checkpoints", env, identity={}, keep=1)

    def save(self, *, wait: bool) -> float:
        """Saves a checkpoint; returns the seconds for which training is blocked. With `wait`, it is blocked until the
        checkpoint is published."""
        self.step += 1
        dist.barrier()
        blocked = self.checkpointer.save(self.step, self.state, extra={"cursor": self.step}, wait=wait)
        blocked += self.checkpointer.staged()
        self.checkpointer.wait()
        return blocked

    def torch_save(self) -> float:
        """Saves with torch.save on rank 0, for which the other ranks wait; returns the seconds."""
        dist.barrier()
        started = time.perf_counter()
        if self.env.rank == 0:
            with open(self.folder / "plain.tmp", "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.folder / "plain.tmp", self.folder / "plain.pt")
        dist.barrier()
        return time.perf_counter() - started

    def load(self) -> float:
        dist.barrier()
        started = time.perf_counter()
        assert self.checkpointer.load(self.state) is not None
        return time.perf_counter() - started

    def torch_load(self) -> float:
        dist.barrier()
        started = time.perf_counter()
        loaded = torch.load(self.folder / "plain.pt", weights_only=True)
        assert loaded.keys() == self.state.keys()
        taken = time.perf_counter() - started
        dist.barrier()
        return taken

    def run(self, repeats: int) -> tuple[Seconds, Seconds]:
        """Runs all contestants in turns; returns the seconds of the saves and of the loads, by contestant."""
        contestants = {
            "blocked": lambda: self.save(wait=False),
            "whole": lambda: self.save(wait=True),
            "torch.save": self.torch_save,
        }
        saves = interleaved(contestants, repeats)
        loads = interleaved({"ours": self.load, "torch.load": self.torch_load}, repeats)
        self.checkpointer.close()
        return saves, loads


def rank_main(rank: int, folder: str, large: int, small: int, repeats: int, device: str, pipe: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    where = device_of(rank, device)
    env = Env(rank, rank, RANKS, RANKS, 0, 1, ("here",), "here", "gloo", where, "benchmark", (0,) * RANKS)
    contests = []
    for size, rounds in ((large, repeats), (small, 3 * repeats)):
        contests.append(Contest(size, env, Path(folder) / str(size)).run(rounds))
    dist.destroy_process_group()
    pipe.send(contests)
    pipe.close()


def measure(folder: Path, large: int, small: int, repeats: int, device: str) -> list[list[tuple[Seconds, Seconds]]]:
    """Starts the ranks and returns the measurements of each: for the large and the small state, saves and loads.

    Args:
        folder: directory of the checkpoints.
        large: bytes of the large state.
        small: bytes of the small state.
        repeats: rounds with the large state; the small one has three times as many.
        device: cpu or cuda.

    Raises:
        RuntimeError: a rank failed.
    """
    context = multiprocessing.get_context("spawn")
    ranks = []
    for rank in range(RANKS):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=rank_main, args=(rank, str(folder), large, small, repeats, device, theirs))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        return [pipe.recv() for _, pipe in ranks]
    except EOFError:
        raise RuntimeError("a rank failed; its words are above") from None
    finally:
        for process, _ in ranks:
            process.join(10)
            process.kill()


def slowest(measured: list[Seconds]) -> Seconds:
    """Returns the time of the slowest rank in each round, by contestant."""
    return {
        name: [max(values) for values in zip(*(each[name] for each in measured), strict=True)] for name in measured[0]
    }


def results(large: int = 500_000_000, small: int = 5_000_000, repeats: int = 7, device: str = "cpu") -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), large, small, repeats, device)
    (saves, loads), (small_saves, small_loads) = (
        tuple(slowest([rank[which][kind] for rank in measured]) for kind in (0, 1)) for which in (0, 1)
    )
    small_load = statistics.median(small_loads["ours"]) * 1000
    return [
        Result(
            f"blocked by a save of {large // 1_000_000} MB / torch.save + fsync",
            median_ratio(saves, "blocked", "torch.save"), 0.08, medians(saves),
        ),
        Result(
            f"blocked by a save of {small // 1_000_000} MB / torch.save + fsync",
            median_ratio(small_saves, "blocked", "torch.save"), 1.0, medians(small_saves),
        ),
        Result(
            f"load of {large // 1_000_000} MB with checksums / torch.load",
            median_ratio(loads, "ours", "torch.load"), 1.8, f"{medians(loads)}; of the small state {small_load:.0f} ms",
        ),
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=500_000_000, help="bytes of the large state")
    parser.add_argument("--small", type=int, default=5_000_000, help="bytes of the small state")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the state is")
    options = parser.parse_args()
    return report(results(options.large, options.small, options.repeats, options.device))


if __name__ == "__main__":
    sys.exit(main())
