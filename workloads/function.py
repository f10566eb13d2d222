"""Any function that can be imported, called in every rank: workload=function workload.target=package.module:function.

It gets `workload.kwargs` and nothing else; what it returns on rank 0 are the run's metrics. What it has to know of its
rank and its run it asks `launcher`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from workloads.ranks import WorkloadError

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Function


def main(config: Function, env: Env | None) -> dict[str, Any]:
    """Calls the target.

    Args:
        config: what to call, and with which arguments.
        env: this rank; None where no process group was wanted. The target may ask `launcher.init()` for it.

    Raises:
        WorkloadError: it returned something that is neither a dict of metrics nor None.
    """
    assert config.target is not None, "the login node has looked"
    result = target(config.target)(**config.kwargs)
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise WorkloadError(
            f"workload.target={config.target} returned {type(result).__name__}: return a dict of metrics, or None"
        )
    return dict(result)


def target(name: str) -> Any:
    """What `package.module:function` names; behind the colon there may be dots (`Trainer.run`)."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))
