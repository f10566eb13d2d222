"""Workloads for points of sweeps that record when they were executed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any


def writes(config: Any, env: Any) -> dict[str, Any]:
    """Sleeps PAUSE seconds, and appends a line [start, end] in seconds since the epoch to RUN/executed.

    Points with a seed above 1 wait while the file HOLD exists.

    Raises:
        ValueError: the point's seed is FAILS.
    """
    begun = time.time()
    time.sleep(float(os.environ.get("PAUSE", "0")))
    while config.seed > 1 and os.path.exists(os.environ.get("HOLD", "")):
        time.sleep(0.05)
    if env.rank == 0:
        with open(Path(os.environ["LAUNCHER_RUN_DIR"], "executed"), "a", opener=_private) as file:
            file.write(json.dumps([begun, time.time()]) + "\n")
    if os.environ.get("FAILS") == str(config.seed):
        raise ValueError(f"point {os.environ['FAILS']} has a banana")
    return {"seed": config.seed}


def alone(config: Any, env: Any) -> dict[str, Any]:
    """Does the same as `writes`. If the point runs twice at the same time, the second one makes the file RUN/twice."""
    folder = Path(os.environ["LAUNCHER_RUN_DIR"])
    with open(folder / "alone", "a", opener=_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (folder / "twice").touch()
            raise
        return writes(config, env)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
