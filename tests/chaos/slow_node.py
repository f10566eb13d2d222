"""p2p with one node whose transfers all start late, as if its link were bad: node rank SLOW_NODE (default: 2)."""

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
    """Makes this rank late if it is on that node."""
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
