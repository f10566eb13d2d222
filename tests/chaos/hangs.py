"""A module that hangs when rank 1 imports it; an agent imports no module of a user's."""

from __future__ import annotations

import os
import time
from typing import Any

if os.environ["RANK"] == "1":
    time.sleep(600)


def main(config: Any, env: Any) -> dict[str, Any]:
    return {}
