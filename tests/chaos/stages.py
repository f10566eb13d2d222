"""Stages of a chain of runs, which do next to nothing: one is done, one fails, one is done in its second attempt."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from launcher import errors


def works(config: Any, env: Any) -> dict[str, Any]:
    """Is done at once, or when the file HOLD is gone; leaves when it began."""
    begun = time.time()
    while (hold := os.environ.get("HOLD")) and Path(hold).exists():
        time.sleep(0.1)
    return {"begun": begun}


def breaks(config: Any, env: Any) -> dict[str, Any]:
    works(config, env)
    raise ValueError("this stage is broken")


def goes_on(config: Any, env: Any) -> dict[str, Any]:
    """Stops in its first attempt, to go on in a second one."""
    if os.environ["LAUNCHER_ATTEMPT"] == "0":
        works(config, env)
        sys.exit(errors.RESUME)
    time.sleep(1)
    return {"begun": time.time()}
