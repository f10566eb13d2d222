"""A module that hangs when rank 1 imports it, and fails in the agent, so that every rank imports it anew."""

from __future__ import annotations

import os
import time
from typing import Any

if "RANK" not in os.environ:
    raise ImportError("not in the agent")
if os.environ["RANK"] == "1":
    time.sleep(600)


def main(config: Any, env: Any) -> dict[str, Any]:
    return {}
