"""Which modules an agent may import before it forks ranks, so that the ranks share them."""

from __future__ import annotations

OURS = "workloads"  # package whose modules start no thread and touch no GPU when they are imported


def modules(entry: str) -> tuple[str, ...]:
    """The modules to import before ranks are forked. Pure.

    | entry | result |
    |---|---|
    | `workloads.ddp:main` | `workloads.ddp` |
    | `my.module:main`, `tests.chaos.counting:main` | nothing |
    | a program (`launcher.worker.program:main`) | nothing |

    The user's modules are imported in each rank, never in the agent: what an import may do (a matrix product starts
    OpenMP's threads, `torch.cuda.is_available()` initialises CUDA) does not survive a fork, and ranks that are forked
    afterwards hang or fail. The same holds for `workload.target`, which `workloads.function` imports in the rank.

    Args:
        entry: `workload.entry`, as `module:function`.
    """
    module = entry.partition(":")[0]
    return (module,) if module.startswith(f"{OURS}.") else ()
