"""Functions that test_functions.py submits as jobs. They return or record where and when they ran."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from submitit.helpers import DelayedSubmission


def square(number: int) -> int:
    return number * number


def divide(number: int) -> float:
    return number / 0


def place() -> tuple[int, int, int, int]:
    """Returns the rank, local rank, node rank and number of tasks, as submitit reports them inside the job."""
    import submitit

    environment = submitit.JobEnvironment()
    return environment.global_rank, environment.local_rank, environment.node, environment.num_tasks


def sleep_in(folder: str, seconds: float) -> None:
    """Sleeps for some seconds, and writes its start and end (seconds since the epoch) to a new file in a folder."""
    file = Path(folder) / f"{os.getpid()}-{time.time_ns()}"
    begun = time.time()
    time.sleep(seconds)
    file.write_text(f"{begun} {time.time()}")


def waits(folder: str) -> None:
    """Writes the file `runs` to a folder as a sign that it has started, and sleeps for ten minutes."""
    (Path(folder) / "runs").touch()
    time.sleep(600)


class Counter:
    """A checkpointable callable that counts up, and logs (job, number from which it counted) each time it is called."""

    def __init__(self) -> None:
        self.number = 0
        self.log: list[tuple[str, int]] = []

    def __call__(self, upto: int, folder: str) -> list[tuple[str, int]]:
        job = os.environ["LAUNCHER_OWN_JOB"]
        self.log.append((job, self.number))
        (Path(folder) / "runs").write_text(job)
        while self.number < upto:
            time.sleep(0.1)
            self.number += 1
        return self.log

    def checkpoint(self, *arguments: Any) -> DelayedSubmission:
        return DelayedSubmission(self, *arguments)


def most_at_once(folder: Path) -> int:
    """Returns the largest number of calls of `sleep_in` that ran at the same time, from the files in its folder."""
    spans = [tuple(map(float, file.read_text().split())) for file in folder.iterdir()]
    return max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans)
