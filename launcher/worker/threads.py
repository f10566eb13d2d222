"""Sets the default number of threads that a rank computes with: the number of its cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

OWN_CORES = "LAUNCHER_CORES"  # how many cores the agent has bound this rank to; unset: it shares those of its node


def cores(environ: Mapping[str, str], local_world_size: int) -> int:
    """Returns the number of a rank's own cores or, if it has none, of its part of the node's CPUs, at least 1.

    Args:
        environ: the rank's environment.
        local_world_size: the number of ranks on its node.
    """
    own = environ.get(OWN_CORES, "")
    return int(own) if own.isdecimal() and int(own) else max(1, len(os.sched_getaffinity(0)) // local_world_size)


def fit(environ: Mapping[str, str]) -> None:
    """Lowers torch's number of threads to the number of this rank's own cores.

    A forked rank inherits the number from its agent, which has the cores of all ranks. It does nothing in a rank
    without torch, or without cores of its own.
    """
    torch = sys.modules.get("torch")
    if torch is not None and OWN_CORES in environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(environ, 1)))
