"""Functions that test_functions.py submits as PBS jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.functions import Counter

__all__ = ["Counter"]


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
    """Starts a process in a session of its own, which PBS does not kill with the job; returns the job's id."""
    subprocess.Popen(["setsid", "sleep", seconds])
    return job()


def waits(folder: str, seconds: float = 600) -> str:
    (Path(folder) / "runs").write_text(job())
    time.sleep(seconds)
    return job()
