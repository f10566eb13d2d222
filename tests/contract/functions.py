"""Functions that the suite in test_functions.py submits, and what they tell of where they ran."""

from __future__ import annotations

import os
import time
from pathlib import Path


def square(number: int) -> int:
    return number * number


def divide(number: int) -> float:
    return number / 0


def place() -> tuple[int, int, int, int]:
    """Rank, local rank, node rank and number of tasks, as submitit tells them."""
    import submitit

    environment = submitit.JobEnvironment()
    return environment.global_rank, environment.local_rank, environment.node, environment.num_tasks


def sleep_in(folder: str, seconds: float) -> None:
    """Notes when it began and ended, in a file named by its process."""
    file = Path(folder) / f"{os.getpid()}-{time.time_ns()}"
    begun = time.time()
    time.sleep(seconds)
    file.write_text(f"{begun} {time.time()}")


def waits(folder: str) -> None:
    """Shows that it runs, and goes on for ten minutes."""
    (Path(folder) / "runs").touch()
    time.sleep(600)


def most_at_once(folder: Path) -> int:
    """How many calls of `sleep_in` overlapped."""
    spans = [tuple(map(float, file.read_text().split())) for file in folder.iterdir()]
    return max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans)
