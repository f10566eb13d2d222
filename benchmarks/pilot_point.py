"""The programs of points in `benchmarks.pilots`: one that does nothing, and one that takes a second."""

from __future__ import annotations

import time
from typing import Any


def nothing(config: Any, env: Any) -> dict[str, Any]:
    """Returns at once."""
    return {}


def second(config: Any, env: Any) -> dict[str, Any]:
    """Returns after a second."""
    time.sleep(1)
    return {}
