"""Time from a command to the first all_reduce of four ranks on this machine, against torchrun with the same script.

    python -m benchmarks.start_up

It is measured from the start of the Python interpreter until rank 0 has the result of the all_reduce.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.first_all_reduce import STAMP
from benchmarks.measure import ROOT, Result, environment, interleaved, median_ratio, medians, python, report

RANKS = 4
LAUNCHER = (
    "-m", "launcher", "workload=collective", "workload.entry=benchmarks.first_all_reduce:main",
    f"procs_per_node={RANKS}",
)  # fmt: skip
TORCHRUN = (
    "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
    ROOT / "benchmarks" / "first_all_reduce.py",
)  # fmt: skip


def results(repeats: int = 7) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        stamp = Path(folder) / "stamp"
        # One thread for each rank, which is torchrun's default, for both.
        env = environment(LAUNCHER_RUNS_DIR=folder, TMPDIR=folder, OMP_NUM_THREADS="1", **{STAMP: str(stamp)})

        def until_stamp(*command: str | Path) -> float:
            stamp.unlink(missing_ok=True)
            started = time.time()
            python(*command, env=env)
            return float(stamp.read_text()) - started

        seconds = interleaved(
            {"launcher": lambda: until_stamp(*LAUNCHER), "torchrun": lambda: until_stamp(*TORCHRUN)}, repeats
        )
    ratio = median_ratio(seconds, "launcher", "torchrun")
    return [Result(f"first all_reduce of {RANKS} ranks / torchrun", ratio, 0.5, medians(seconds))]


if __name__ == "__main__":
    sys.exit(report(results()))
