"""The Slurm scheduler."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.failures.codes import NextReason
from launcher.files.shared_files import backoff
from launcher.schedulers.base import (
    JOB_TIMEOUT,
    Allocation,
    AnswerLost,
    Ending,
    FolderQueue,
    JobVariables,
    QueryError,
    Scrubbed,
    scrubbed,
)
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.client import Slurm, ambiguous_cluster
from launcher.schedulers.topology import expand_counts

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.plan.plan import JobPlan
    from launcher.runs.directory import Run

ASKED_FOR = 10.0  # seconds for which an ending job asks again if squeue gives no answer; Slurm kills it after 30


class SlurmScheduler(FolderQueue):
    folder = __name__.rpartition(".")[0]
    name = "slurm"
    title = "Slurm"
    requeues = True
    command = "sbatch"
    output_signal = 53  # RaisedSignal:53(Real-time_signal_19)
    template = "sbatch.sh.j2"
    shell = JobVariables(
        job_id="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}", element_id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        index="SLURM_ARRAY_TASK_ID", time_left="launcher.schedulers.slurm.in_job:seconds_left",
    )  # fmt: skip
    interactive = "salloc"
    allocation_variables = ("SLURM_JOB_ID",)
    step_starter = "srun"
    step_requirement = "srun --overlap, of Slurm 20.11 or newer"

    def allocation(self, environ: Mapping[str, str]) -> Allocation:
        nodes = int(environ.get("SLURM_JOB_NUM_NODES", "1"))
        cpus = environ.get("SLURM_JOB_CPUS_PER_NODE")  # `16(x2),8`
        return Allocation(nodes, "srun", tuple(expand_counts(cpus)) if cpus else (), environ["SLURM_JOB_ID"])

    def starter(self, cluster: Cluster) -> str:
        return "srun"

    def start_tasks(self, plan: JobPlan) -> list[str]:
        return script.tasks(plan)

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        result = scrubbed(environ, kept=script.inherited(plan))
        return replace(result, dropped=tuple(name for name in result.dropped if name != "SLURM_CLUSTERS"))

    def problem(self) -> str | None:
        if not shutil.which("sbatch"):
            return "sbatch is not on this machine's PATH: submit from a login node of the cluster, or use cluster=local"
        return ambiguous_cluster(os.environ)

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> Ending | None:
        if left <= 0:
            return None
        slurm, job_id = Slurm(JOB_TIMEOUT), os.environ["LAUNCHER_JOB_ID"]
        for _ in backoff(ASKED_FOR if stop_requested else 0.0, 1.0):
            with contextlib.suppress(QueryError):
                state, reason = slurm.state_and_reason(job_id)
                if state == "RUNNING" or reason == "TimeLimit":
                    return None
                preempted = state == "PREEMPTED" or slurm.preempted(job_id) is not None
                return Ending(NextReason.PREEMPTED if preempted else NextReason.SCHEDULER_ENDS, "Slurm", state)
        # Unknown. A requeue could bring back a job that its owner has deleted; without a stop request it cannot be one.
        return super().ending(plan, stop_requested=stop_requested, left=left)

    def queries(self, timeout: float) -> Slurm:
        return Slurm(timeout)

    def here(self) -> bool:
        return shutil.which("squeue") is not None

    def server(self) -> tuple[str | None, ...]:
        return shutil.which("squeue"), os.environ.get("SLURM_CONF"), os.environ.get("SLURM_CLUSTERS")

    def own_job(self, environ: Mapping[str, str]) -> str:
        return environ["SLURM_JOB_ID"]

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        environment = dict(self.job_environment(os.environ, plan).environment)
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # those of the current job
        return environment

    def requeue(self, job_id: str) -> None:
        slurm = Slurm(JOB_TIMEOUT)
        try:
            slurm.requeue(job_id)
        except AnswerLost as lost:
            try:
                received = slurm.state_and_reason(job_id)[0] != "RUNNING"
            except QueryError:
                raise lost from None
            if not received:
                raise QueryError(str(lost)) from None

    def preempted(self, job_id: str) -> float | None:
        return Slurm(JOB_TIMEOUT).preempted(job_id)

    def step(self, argv: Sequence[str], job_id: str, host: str, folder: str, *, terminal: bool) -> list[str]:
        return script.command(argv, job_id, host, folder, terminal=terminal)

    def step_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return script.environment(environ)

    def without(self, hosts: str, settings: Mapping[str, Any]) -> str:
        excluded = settings.get("exclude")
        names = f"{excluded},{hosts}" if excluded else hosts
        plain = not set("[],") & set(names)  # needs no quotes for Hydra and the shell
        return f"cluster.exclude={names}" if plain else f"\"cluster.exclude='{names}'\""

    def found(self) -> str:
        path = shutil.which(self.command)
        return f"Slurm (sbatch is {path})" if path else ""
