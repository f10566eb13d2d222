"""Start-up time of sub-commands that need no Hydra, against a Python interpreter that does nothing.

    python -m benchmarks.sub_commands

The launcher's --help, `status --help`, and `status` with an empty runs directory. No scheduler is on PATH, since its
response time is not the launcher's.
"""

from __future__ import annotations

import sys
import tempfile

from benchmarks.measure import Result, environment, interleaved, median_ratio, medians, python, report


def results(repeats: int = 25) -> list[Result]:
    with tempfile.TemporaryDirectory() as empty:
        env = environment(LAUNCHER_RUNS_DIR=empty, PATH=empty)
        seconds = interleaved(
            {
                "python -c pass": lambda: python("-c", "pass", env=env)[0],
                "--help": lambda: python("-m", "launcher", "--help", env=env)[0],
                "status --help": lambda: python("-m", "launcher", "status", "--help", env=env)[0],
                "status": lambda: python("-m", "launcher", "status", env=env)[0],
            },
            repeats,
        )
    return [
        Result(f"{name} / python -c pass", median_ratio(seconds, name, "python -c pass"), most, medians(seconds))
        for name, most in (("--help", 9), ("status --help", 4), ("status", 9))
    ]


if __name__ == "__main__":
    sys.exit(report(results()))
