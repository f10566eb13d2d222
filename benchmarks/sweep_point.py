"""The program of a point in `benchmarks.sweep`, as a script and as the entry point of a workload: loads torch, and
sleeps for a second."""

from __future__ import annotations

import time
from typing import Any

import torch


def main(config: Any, env: Any) -> dict[str, Any]:
    """Sleeps for a second. `config` and `env` are the arguments of every workload, and are not used."""
    time.sleep(1)
    return {"threads": torch.get_num_threads()}


if __name__ == "__main__":
    main(None, None)
