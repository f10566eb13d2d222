"""Checks at submission that the packages of a run's trackers (TensorBoard, MLflow, W&B) are installed.

launcher/worker/tracking.py sends the metrics to them, on the compute node.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


def check(plan: JobPlan) -> tuple[str, ...]:
    """Checks the packages of the plan's trackers. Returns notes about missing ones that the job may have all the same.

    Raises:
        ConfigError: a package is missing, and the job certainly runs with this interpreter and module path.
    """
    missing = [name for name in plan.track if not _is_installed(name)]
    if not missing:
        return ()
    needs = f"track={missing[0]} needs the package {missing[0]}"
    fix = f"pip install 'launcher[{','.join(missing)}]'"
    if plan.env.container or plan.env.archive or plan.env.activate:
        where = plan.env.container or plan.env.archive or plan.env.activate
        return (f"{needs}, which is not installed here; {where} has to have it",)
    if plan.cluster.setup or plan.env.modules or plan.env.setup or "PYTHONPATH" in plan.cluster.environment:
        where = "cluster.setup, cluster.environment or env"
        return (f"{needs}, which is not installed here; unless {where} provides it: {fix}",)
    raise ConfigError(f"{needs}, which {plan.python} does not have: {fix}, or leave track out")


@lru_cache
def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # a mere folder has no origin; W&B makes one called `wandb`
