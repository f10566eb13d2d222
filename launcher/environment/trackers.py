"""Trackers that a run may be shown in: their names, the packages that they need, and whether those are here.

What hands a run's metrics to them is launcher/worker/tracking.py, on the compute node.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from launcher.spec.plan import JobPlan


def check(plan: JobPlan) -> tuple[str, ...]:
    """What the user should know of packages that are missing here, where the job may have them.

    Raises:
        ConfigError: one is missing, and the job runs with this interpreter as it is.
    """
    missing = [name for name in plan.track if not _here(name)]
    if not missing:
        return ()
    told = f"track={missing[0]} needs the package {missing[0]}"
    fix = f"pip install 'launcher[{','.join(missing)}]'"
    if plan.container or plan.archive or plan.activate:
        where = plan.container or plan.archive or plan.activate
        return (f"{told}, which is not here; {where} has to have it",)
    if plan.setup or plan.modules or plan.env_setup or "PYTHONPATH" in plan.environment:
        return (f"{told}, which is not here; unless cluster.setup, cluster.environment or env brings it: {fix}",)
    raise ConfigError(f"{told}, which {plan.python} does not have: {fix}, or leave track out")


@lru_cache
def _here(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # else a folder of that name, as W&B makes one where it writes
