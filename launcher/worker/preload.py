"""Which modules an agent may import before it forks ranks, so that they share them."""

from __future__ import annotations

OURS = "workloads"  # a package of the launcher, whose modules start no thread and touch no GPU when they are imported


def modules(entry: str) -> tuple[str, ...]:
    """The modules to import before ranks are forked. Pure.

    | entry | is imported |
    |---|---|
    | `workloads.ddp:main` | `workloads.ddp` |
    | `my.module:main`, `tests.chaos.counting:main` | nothing |
    | a program (`launcher.worker.program:main`) | nothing |

    A user's module is imported in each rank, never in the agent: what it does when it is imported (a matrix product
    starts OpenMP's threads, `torch.cuda.is_available()` initialises CUDA) does not survive a fork, and a rank that is
    forked afterwards hangs or fails. Nor is `workload.target`, which `workloads.function` imports in the rank.

    Args:
        entry: `workload.entry`, as `module:function`.
    """
    module = entry.partition(":")[0]
    return (module,) if module.startswith(f"{OURS}.") else ()
