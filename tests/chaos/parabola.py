"""A workload for points of searches: it computes metrics from its config (workload.lr) without training."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def main(config: Any, env: Any) -> dict[str, Any]:
    """Returns metrics that are functions of lr, after PARABOLA_TIME seconds.

    It leaves an empty file RUN/executed-PID.

    Raises:
        ValueError: lr is above PARABOLA_CLIFF.
    """
    Path(os.environ["LAUNCHER_RUN_DIR"], f"executed-{os.getpid()}").touch(mode=0o600)
    time.sleep(float(os.environ.get("PARABOLA_TIME", "0")))
    if config.lr > float(os.environ.get("PARABOLA_CLIFF", "inf")):
        raise ValueError(f"{config.lr} is beyond the cliff")
    return {"height": (config.lr - 0.25) ** 2, "width": abs(config.lr), "hole": float("nan")}
