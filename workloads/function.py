"""Calls any importable function in every rank: workload=function workload.target=package.module:function.

The function gets `workload.kwargs` and nothing else. The dict that it returns on rank 0 becomes the run's metrics. It
can ask `launcher` for its rank and its run.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from workloads.across_ranks import WorkloadError

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import Function


def main(config: Function, env: Env | None) -> dict[str, Any]:
    """Calls the target; returns its metrics. WorkloadError: it returned neither a dict of metrics nor None."""
    assert config.target is not None, "checked before the submission"
    result = target(config.target)(**config.kwargs)
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise WorkloadError(
            f"workload.target={config.target} returned {type(result).__name__}: return a dict of metrics, or None"
        )
    return dict(result)


def target(name: str) -> Any:
    """Imports and returns the object that `package.module:function` or `package.module:Trainer.run` names."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))
