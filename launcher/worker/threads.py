"""How many threads a rank computes with where nobody says: as many as it has cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

OWN_CORES = "LAUNCHER_CORES"  # how many cores the agent has bound this rank to; unset: it shares those of its node


def cores(environ: Mapping[str, str], local_world_size: int) -> int:
    """A rank's own cores, else its part of the CPUs that it may use, at least 1.

    Args:
        environ: of the rank.
        local_world_size: how many ranks its node has.
    """
    own = environ.get(OWN_CORES, "")
    return int(own) if own.isdecimal() and int(own) else max(1, len(os.sched_getaffinity(0)) // local_world_size)


def fit(environ: Mapping[str, str]) -> None:
    """Lowers torch's number of threads to this rank's own cores: a fork has that of its agent, which has the cores of
    all. In a rank without torch, or without cores of its own, it does nothing.
    """
    torch = sys.modules.get("torch")
    if torch is not None and OWN_CORES in environ:
        torch.set_num_threads(min(torch.get_num_threads(), cores(environ, 1)))
