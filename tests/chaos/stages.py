"""Workloads for chains of runs: one is done at once, one fails, one is done in its second attempt."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from launcher import errors


def works(config: Any, env: Any) -> dict[str, Any]:
    """Ends at once, or if HOLD names a file, when this file is gone; returns its start in seconds since the epoch."""
    begun = time.time()
    while (hold := os.environ.get("HOLD")) and Path(hold).exists():
        time.sleep(0.1)
    return {"begun": begun}


def breaks(config: Any, env: Any) -> dict[str, Any]:
    works(config, env)
    raise ValueError("this stage is broken")


def goes_on(config: Any, env: Any) -> dict[str, Any]:
    """Stops early in its first attempt (exit code 75), and is done in its second attempt."""
    if os.environ["LAUNCHER_ATTEMPT"] == "0":
        works(config, env)
        sys.exit(errors.RESUME)
    time.sleep(1)
    return {"begun": time.time()}
