"""Checks a plan against Slurm's live partitions before a submission."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from launcher.schedulers.queries import QueryError
from launcher.schedulers.slurm.commands import Slurm
from launcher.schedulers.slurm.limits import check_partition
from launcher.spec.plan import JobPlan


def compare(plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Checks a plan against the live partitions; returns a note for the user if Slurm does not answer.

    Args:
        plan: the run's plan.
        environ: environment of the submission, whose SBATCH_PARTITION is the default partition.

    Raises:
        ConfigError: the plan's partition does not exist, or could never start the job.
    """
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Slurm(plan.cluster.submit_timeout).partitions)
        importlib.import_module(
            "launcher.schedulers.slurm.executor"
        )  # 30 ms; the submission needs it next, and Slurm answers meanwhile
    try:
        partitions = answer.result()
    except QueryError as error:
        return (f"not compared with the live partitions: {error}",)
    if partitions:
        check_partition(plan, partitions, environ.get("SBATCH_PARTITION"))  # which sbatch gets as well
    return ()
