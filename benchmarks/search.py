"""A search that prunes (ASHA), against the whole grid: the best accuracy, and the training steps of all points.

    python -m benchmarks.search [--values 3] [--epochs 300]

Both run ddp_mnist in one pilot of two slots on this machine, with three values for each of three keys: 27 points.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import ROOT, Result, environment, report
from launcher.runs.events import Progress, last
from launcher.runs.sweep_directory import Sweep

KEYS = {
    "workload.lr": ("0.1", "0.01", "0.001"),
    "workload.momentum": ("0.9", "0.5", "0.0"),
    "workload.weight_decay": ("1e-4", "1e-3", "1e-2"),
}


def results(values: int = 3, epochs: int = 300) -> list[Result]:
    """Runs the benchmark; returns the ratios of steps and of the best accuracy, search to grid."""
    with tempfile.TemporaryDirectory() as scratch:
        (full, all_steps), (found, steps) = (_run(Path(scratch), each, values, epochs) for each in ("grid", "asha"))
    detail = f"{values ** len(KEYS)} points, {epochs} epochs: {steps} of {all_steps} steps"
    return [
        Result("steps of ASHA, of those of the whole grid", steps / all_steps, 1 / 3, detail),
        Result("best accuracy of ASHA", found / full, 0.98, f"{found:.4f}, grid {full:.4f}", at_least=True),
    ]


def _run(folder: Path, search: str, values: int, epochs: int) -> tuple[float, int]:
    """Runs a search to its end; returns the best accuracy, and the number of steps of all points."""
    _launcher(
        [
            "-m", "workload=ddp_mnist", "workload.dataset=digits", f"workload.epochs={epochs}", "workload.threads=1",
            *(f"{key}={','.join(each[:values])}" for key, each in KEYS.items()), f"sweep.search={search}",
            "sweep.objective=accuracy", "sweep.slots=2", f"sweep.id={search}", "wait=true",
        ],
        folder,
    )  # fmt: skip
    runs = [each.run for each in Sweep(folder / "runs" / search).points()]
    best = max((run.result() or {}).get("accuracy", 0.0) for run in runs)
    steps = [last(attempt.events(), Progress) for run in runs for attempt in run.attempts()[-1:]]
    return best, sum(int(each.step) for each in steps if each is not None)


def _launcher(arguments: Sequence[str], folder: Path) -> None:
    env = {**os.environ, **environment(LAUNCHER_RUNS_DIR=str(folder / "runs"), LAUNCHER_CONFIG_DIR=str(folder))}
    subprocess.run([sys.executable, "-m", "launcher", *arguments], cwd=ROOT, env=env, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--values", type=int, default=3, help="of each of three keys")
    parser.add_argument("--epochs", type=int, default=300, help="of each point that is not pruned")
    options = parser.parse_args()
    return report(results(options.values, options.epochs))


if __name__ == "__main__":
    sys.exit(main())
