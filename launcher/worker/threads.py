"""Sets the number of threads with which torch computes in a rank: by default the number of the rank's cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

OWN_CORES = "LAUNCHER_CORES"  # variable: number of cores the agent has bound this rank to; unset if it is not bound


def cores(environ: Mapping[str, str], local_world_size: int) -> int:
    """Returns the number of cores that a rank is bound to or, if not bound, its share of the node's CPUs (>= 1)."""
    own = environ.get(OWN_CORES, "")
    return int(own) if own.isdecimal() and int(own) else max(1, len(os.sched_getaffinity(0)) // local_world_size)


def limit_threads(environ: Mapping[str, str]) -> None:
    """Lowers torch's number of threads to the number of cores that this rank is bound to.

    A forked rank inherits torch's number of threads from its agent, which has the cores of all ranks. Does nothing if
    torch is not loaded, or the rank is not bound to cores.

    environ: the rank's environment, in which the agent has set LAUNCHER_CORES if the rank is bound.
    """
    torch = sys.modules.get("torch")
    if torch is not None and OWN_CORES in environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(environ, 1)))
