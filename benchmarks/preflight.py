"""Time that `preflight=true` adds to the start of a run on four simulated nodes of this machine.

    python -m benchmarks.preflight

The first result is the time of the preflight on the leader, from the rendezvous of all agents to its decision, with the
creation of a process group. The second one compares the time from the command to the first all_reduce with a preflight
and without, in turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.first_all_reduce import STAMP
from benchmarks.measure import Result, environment, interleaved, median_ratio, medians, python, report
from launcher.runs.lookup import all_runs

NODES = 4
LIMIT = 3.0  # target of the preflight, in seconds
LAUNCHER = (
    "-m", "launcher", "workload=collective", "workload.entry=benchmarks.first_all_reduce:main", f"nodes={NODES}",
)  # fmt: skip


def results(repeats: int = 5) -> list[Result]:
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        stamp = Path(folder) / "stamp"
        env = environment(LAUNCHER_RUNS_DIR=folder, OMP_NUM_THREADS="1", **{STAMP: str(stamp)})

        def until_stamp(*overrides: str) -> float:
            stamp.unlink(missing_ok=True)
            started = time.time()
            python(*LAUNCHER, *overrides, env=env)
            return float(stamp.read_text()) - started

        def with_preflight() -> float:
            seconds = until_stamp("preflight=true")
            events = all_runs(Path(folder))[0].attempts()[-1].events()
            result = next(event for event in events if event["event"] == "preflighted")
            assert result["then"] == "go", result
            took.append(result["seconds"])
            return seconds

        seconds = interleaved({"with": with_preflight, "without": until_stamp}, repeats)
    detail = f"slowest of {len(took)}; median {statistics.median(took):.2f} s"
    return [
        Result(f"preflight of {NODES} simulated nodes", max(took), LIMIT, detail, unit="s"),
        Result(
            f"first all_reduce of {NODES} nodes with preflight / without", median_ratio(seconds, "with", "without"),
            1.5, medians(seconds),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(report(results()))
