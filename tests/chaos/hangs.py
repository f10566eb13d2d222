"""A workload whose import hangs on rank 1. (Agents never import a user's module.)"""

from __future__ import annotations

import os
import time
from typing import Any

if os.environ["RANK"] == "1":
    time.sleep(600)


def main(config: Any, env: Any) -> dict[str, Any]:
    return {}
