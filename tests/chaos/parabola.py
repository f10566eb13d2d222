"""Points of searches: metrics that are computed from the config of ddp_mnist, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def main(config: Any, env: Any) -> dict[str, Any]:
    """Leaves an empty file RUN/executed-PID; fails where lr is above PARABOLA_CLIFF; takes PARABOLA_TIME seconds."""
    Path(os.environ["LAUNCHER_RUN_DIR"], f"executed-{os.getpid()}").touch(mode=0o600)
    time.sleep(float(os.environ.get("PARABOLA_TIME", "0")))
    if config.lr > float(os.environ.get("PARABOLA_CLIFF", "inf")):
        raise ValueError(f"{config.lr} is beyond the cliff")
    return {"height": (config.lr - 0.25) ** 2, "width": abs(config.lr), "hole": float("nan")}
