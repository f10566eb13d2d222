"""Imports the modules that ranks share with the process that forks them.

torch is not in this list: `agent.attempt` imports it itself.
"""

from __future__ import annotations

import contextlib
import importlib
import signal

OURS = "workloads"  # package whose modules start no thread and touch no GPU when they are imported


def modules(entry: str) -> tuple[str, ...]:
    """Returns the names of the modules to import before ranks are forked.

    | entry | result |
    |---|---|
    | `workloads.ddp:main` | `workloads.ddp` |
    | `my.module:main`, `tests.chaos.counting:main` | nothing |
    | a program (`launcher.worker.program:main`) | nothing |

    The user's modules are imported in each rank, never in the agent. An import may start threads (a matrix product
    starts OpenMP's) or initialize CUDA (`torch.cuda.is_available()`), neither of which survives a fork: the ranks would
    hang or fail. The same holds for `workload.target`, which `workloads.function` imports in the rank.
    """
    module = entry.partition(":")[0]
    return (module,) if module.startswith(f"{OURS}.") else ()


def load(entry: str, timeout: int) -> None:
    """Imports the modules for ranks with this `workload.entry`, on the main thread; timeout: seconds for all.

    An import that fails, or takes longer, raises nothing: the ranks repeat it, so that the user sees their traceback,
    or which rank is missing.
    """

    def too_long(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        with contextlib.suppress(Exception):
            signal.alarm(timeout)
            for name in modules(entry):
                importlib.import_module(name)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
