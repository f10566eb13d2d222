"""Points of sweeps that tell when they were executed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any


def writes(config: Any, env: Any) -> dict[str, Any]:
    """Appends a line to RUN/executed, [begin, end] in seconds, PAUSE apart; the point whose seed is FAILS fails.

    All but the first two wait while there is a file HOLD.
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
    """As `writes`; if the point is run twice at the same time, the second one makes the file RUN/twice."""
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
