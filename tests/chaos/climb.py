"""Points of searches that climb: each step brings them further by what their seed is worth, and they report it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from launcher import evaluated, progress, stopping

STEPS = 27


def main(config: Any, env: Any) -> dict[str, Any]:
    """27 steps of STEP_TIME seconds; the height after each is step * worth of the seed."""
    Path(os.environ["LAUNCHER_RUN_DIR"], f"executed-{os.getpid()}").touch(mode=0o600)
    for step in range(1, STEPS + 1):
        time.sleep(float(os.environ.get("STEP_TIME", "0.1")))
        progress(step, STEPS)
        evaluated(step, height=step * worth(config.seed))
        if stopping():
            raise SystemExit(75)
    return {"height": STEPS * worth(config.seed)}


def worth(seed: int) -> float:
    """From 0 to 1; neighbouring seeds have very different ones."""
    return (seed * 7919 % 101) / 101
