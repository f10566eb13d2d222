"""Time to bind ranks to cores, and its effect on the speed of a training.

    python -m benchmarks.binding

The first two results are the time that binding adds to the start of an agent: it reads the node's hardware, once, and
computes the masks. The second one is for a node of 256 CPUs, from a copy of its files. The others train ddp_mnist with
two ranks with the same number of threads, in turns: bound by default, with a core each (launch.bind=core), and not
bound. Each training takes some seconds: the speeds of shorter ones differ by more than binding changes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, environment, interleaved, median_ratio, python, report
from launcher.binding import hardware, masks
from launcher.binding.masks import parse
from launcher.runs.lookup import all_runs

RANKS = 2
LIMIT = 20.0  # target of binding, in milliseconds
LOOKS = 20
SOCKETS, NUMAS, CORES = 2, 8, 128


def results(repeats: int = 7, steps: int = 1200) -> list[Result]:
    here = [_bind(Path("/"), RANKS) for _ in range(LOOKS)]
    with tempfile.TemporaryDirectory() as folder:
        _large_node(Path(folder))
        large = [_bind(Path(folder), NUMAS) for _ in range(LOOKS)]
    detail, of_large = (f"median of {LOOKS}, slowest {max(took):.1f} ms" for took in (here, large))
    speeds = _speeds(repeats, steps)
    shown = ", ".join(f"{how} {statistics.median(found):,.0f} images/s" for how, found in speeds.items())
    return [
        Result(f"binding on this node ({os.cpu_count()} CPUs)", statistics.median(here), LIMIT, detail, unit="ms"),
        Result(f"binding on a node of {2 * CORES} CPUs", statistics.median(large), LIMIT, of_large, unit="ms"),
        *(
            Result(f"ddp_mnist images/s unbound / {how}", median_ratio(speeds, "unbound", how), 1.05, shown)
            for how in ("bound", "a core each")
        ),
    ]


def _bind(root: Path, ranks: int) -> float:
    """Reads the hardware below `root` and binds `ranks` ranks; returns the milliseconds."""
    began = time.perf_counter()
    node = hardware.read(root, {})
    allowed = {cpu for core in node.cores for cpu in core.cpus}
    masks.bind(node, allowed, masks.of_ranks(node, {}, range(ranks), gpus=False), parse("auto"))
    return 1000 * (time.perf_counter() - began)


def _speeds(repeats: int, steps: int) -> dict[str, list[float]]:
    """Trains in turns; returns the images per second of each run, by "bound", "unbound" and "a core each"."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(LAUNCHER_RUNS_DIR=folder, OMP_NUM_THREADS="1")

        def speed(how: str) -> float:
            epochs = max(1, steps * 128 // 1437)  # digits has 1437 training images
            python(
                "-m", "launcher", "workload=ddp_mnist", "workload.dataset=digits", f"workload.epochs={epochs}",
                f"procs_per_node={RANKS}", f"launch.bind={how}", env=env,
            )  # fmt: skip
            metrics = all_runs(Path(folder))[0].result()
            assert metrics is not None
            return float(metrics["images_per_s"])

        return interleaved(
            {"bound": lambda: speed("auto"), "unbound": lambda: speed("none"), "a core each": lambda: speed("core")},
            repeats,
        )  # fmt: skip


def _large_node(root: Path) -> None:
    """Writes the files of a node with two sockets of 64 cores, two threads each."""
    per_socket, per_numa = CORES // SOCKETS, CORES // NUMAS

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")

    def both(first: int, count: int) -> str:
        return f"{first}-{first + count - 1},{CORES + first}-{CORES + first + count - 1}"

    write("sys/devices/system/cpu/online", f"0-{2 * CORES - 1}")
    for numa in range(NUMAS):
        write(f"sys/devices/system/node/node{numa}/cpulist", both(numa * per_numa, per_numa))
        write(
            f"sys/devices/system/node/node{numa}/distance", " ".join("10" if n == numa else "32" for n in range(NUMAS))
        )
    for core in range(CORES):
        folder = f"sys/devices/system/cpu/cpu{core}"
        write(f"{folder}/topology/core_cpus_list", f"{core},{CORES + core}")
        write(f"{folder}/topology/package_cpus_list", both(core // per_socket * per_socket, per_socket))
        write(f"{folder}/topology/physical_package_id", str(core // per_socket))
        write(f"{folder}/cache/index3/shared_cpu_list", both(core // 8 * 8, 8))


if __name__ == "__main__":
    sys.exit(report(results()))
