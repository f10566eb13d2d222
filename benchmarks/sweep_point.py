"""A job of one second that loads torch, as a user's script of its own and as the entry point of a workload."""

from __future__ import annotations

import time
from typing import Any

import torch


def main(config: Any, env: Any) -> dict[str, Any]:
    """One second; `config` and `env` are what every workload gets, and not used."""
    time.sleep(1)
    return {"threads": torch.get_num_threads()}


if __name__ == "__main__":
    main(None, None)
