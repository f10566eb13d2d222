"""A workload for points of searches: its metric `height` grows by a constant at each step, which the seed decides."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from launcher import evaluated, progress, should_stop

STEPS = 27


def main(config: Any, env: Any) -> dict[str, Any]:
    """Makes 27 steps of STEP_TIME seconds, and reports `height` = step * worth(seed) after each.

    It leaves an empty file RUN/executed-PID, and exits with 75 at a stop request.
    """
    Path(os.environ["LAUNCHER_RUN_DIR"], f"executed-{os.getpid()}").touch(mode=0o600)
    for step in range(1, STEPS + 1):
        time.sleep(float(os.environ.get("STEP_TIME", "0.1")))
        progress(step, STEPS)
        evaluated(step, height=step * worth(config.seed))
        if should_stop():
            raise SystemExit(75)
    return {"height": STEPS * worth(config.seed)}


def worth(seed: int) -> float:
    """Returns the height that a step gains: a number from 0 to 1 that is very different for neighbouring seeds."""
    return (seed * 7919 % 101) / 101
