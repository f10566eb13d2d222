"""Checks a plan against Slurm's live partitions before a submission."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.errors import ConfigError
from launcher.schedulers.queries import QueryError
from launcher.schedulers.slurm.commands import Slurm
from launcher.schedulers.slurm.directives import effective
from launcher.schedulers.slurm.limits import Partition, Qos, check_partition
from launcher.spec.plan import JobPlan

ANY = Qos("", lifts_time=True, lifts_nodes=True)


def compare(plan: JobPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Checks a plan against the live partitions; returns a note for the user if Slurm does not answer.

    Args:
        plan: the run's plan.
        environ: environment of the submission.

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
    if not partitions:
        return ()
    try:
        check_partition(plan, partitions, effective(plan, environ)["partition"])
    except ConfigError as refusal:
        return _with_qos(plan, partitions, effective(plan, environ), refusal)
    return ()


def _with_qos(
    plan: JobPlan, partitions: Sequence[Partition], values: Mapping[str, str | None], refusal: ConfigError
) -> tuple[str, ...]:
    # Lazily: 15 ms, and most plans need no QOS
    from launcher.schedulers.slurm.resource_queries import ResourceQueries

    def check(qos: Qos) -> None:
        check_partition(plan, [qos.within(each) for each in partitions], values["partition"])

    check(ANY)
    try:
        found = ResourceQueries(plan.cluster.submit_timeout).qos(values["qos"], values["account"])
    except QueryError as error:
        return (f"{refusal}, unless the job's QOS lifts this limit, which is not known ({error})",)
    for qos in found:
        try:
            check(qos)
            return ()
        except ConfigError as error:
            refusal = error
    raise refusal
