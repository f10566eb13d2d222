"""What test_functions.py submits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from submitit.helpers import DelayedSubmission


def job() -> str:
    return os.environ["PBS_JOBID"]


def double(number: int) -> int:
    print("out", number)
    print("err", number, file=sys.stderr)
    return 2 * number


def tell(variables: list[str]) -> list[str | None]:
    return [os.environ.get(name) for name in variables]


def umask_and_folder() -> tuple[int, str]:
    umask = os.umask(0)
    os.umask(umask)
    return umask, os.getcwd()


def leaves_a_session(seconds: str) -> str:
    """Starts something that is out of reach of whoever ends the job."""
    subprocess.Popen(["setsid", "sleep", seconds])
    return job()


def waits(folder: str, seconds: float = 600) -> str:
    (Path(folder) / "runs").write_text(job())
    time.sleep(seconds)
    return job()


class Counter:
    """Counts to a number, a tenth of a second each, and notes which jobs did it and where they began."""

    def __init__(self) -> None:
        self.number = 0
        self.log: list[tuple[str, int]] = []

    def __call__(self, upto: int, folder: str) -> list[tuple[str, int]]:
        self.log.append((job(), self.number))
        (Path(folder) / "runs").write_text(job())
        while self.number < upto:
            time.sleep(0.1)
            self.number += 1
        return self.log

    def checkpoint(self, *arguments: Any) -> DelayedSubmission:
        return DelayedSubmission(self, *arguments)
