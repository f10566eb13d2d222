"""The workload p2p with a slow node: all transfers of node rank SLOW_NODE (default: 2) start late."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from workloads import p2p

DELAY = 0.05  # seconds


def delay(env: Any) -> None:
    """Delays all transfers of this rank, if it is on the slow node."""
    if env.node_rank == int(os.environ.get("SLOW_NODE", "2")):
        for name in ("send", "batch_isend_irecv"):
            setattr(dist, name, _late(getattr(dist, name)))


def _late(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def late(*arguments: Any, **keywords: Any) -> Any:
        time.sleep(DELAY)
        return real(*arguments, **keywords)

    return late


def main(config: Any, env: Any) -> Any:
    delay(env)
    return p2p.main(config, env)
