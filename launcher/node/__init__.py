"""What a compute node runs, and the small public face that workloads and your own scripts use.

    from launcher.node import init
    env = init()          # a process group, from srun, mpiexec, torchrun, PBS or nothing at all
    print(env.rank, env.world_size, env.device)

Importing this costs nothing: torch is loaded when `init` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.node.process_group import Env, evaluated, init, progress, rank_zero, report, run_dir
    from launcher.node.topology import Topology, TopologyError

__all__ = ["Env", "Topology", "TopologyError", "evaluated", "init", "progress", "rank_zero", "report", "run_dir"]


def __getattr__(name: str) -> Any:
    if name in ("Topology", "TopologyError"):
        from launcher.node import topology

        return getattr(topology, name)
    if name in __all__:
        from launcher.node import process_group

        return getattr(process_group, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
