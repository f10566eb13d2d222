"""The Slurm scheduler."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.failures.codes import NextReason
from launcher.files.retried_reads import backoff
from launcher.schedulers import base
from launcher.schedulers.job_environment import Scrubbed, scrubbed
from launcher.schedulers.slurm import script
from launcher.schedulers.slurm.client import Slurm, ambiguous_cluster
from launcher.schedulers.topology import expand_counts

if TYPE_CHECKING:
    from launcher.config.schema import Cluster
    from launcher.plan.plan import JobPlan
    from launcher.runs.directory import Run

REQUEUES = 60.0  # seconds in which a requeue is asked for again if its answer is lost
ASKED_FOR = 10.0  # seconds for which an ending job asks again if squeue gives no answer; Slurm kills it after 30


class SlurmScheduler(base.FolderQueue):
    folder = __name__.rpartition(".")[0]
    name = "slurm"
    title = "Slurm"
    pools = "partitions"
    requeues = True
    command = "sbatch"
    output_signal = 53  # RaisedSignal:53(Real-time_signal_19)
    template = "sbatch.sh.j2"
    shell = base.JobVariables(
        job_id="${LAUNCHER_JOB_ID:-${SLURM_JOB_ID:-}}", element_id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        index="SLURM_ARRAY_TASK_ID", time_left="launcher.schedulers.slurm.in_job:seconds_left",
        away="launcher.schedulers.slurm.in_job:is_away", kill_wait="launcher.schedulers.slurm.in_job:kill_wait",
        for_good="launcher.schedulers.slurm.in_job:end_for_good",
    )  # fmt: skip
    interactive = "salloc"
    allocation_variables = ("SLURM_JOB_ID",)
    start_tasks = base.in_folder("script:tasks")
    step = base.in_folder("script:command")
    step_environment = base.in_folder("script:environment")
    own_job = base.in_folder("in_job:own_job")
    step_starter = "srun"
    step_requirement = "srun --overlap, of Slurm 20.11 or newer"

    def allocation(self, environ: Mapping[str, str]) -> base.Allocation:
        nodes = int(environ.get("SLURM_JOB_NUM_NODES", "1"))
        cpus = environ.get("SLURM_JOB_CPUS_PER_NODE")  # `16(x2),8`
        return base.Allocation(nodes, "srun", tuple(expand_counts(cpus)) if cpus else (), environ["SLURM_JOB_ID"])

    def starter(self, cluster: Cluster) -> str:
        return "srun"

    def job_environment(self, environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
        result = scrubbed(environ, kept=script.inherited(plan))
        return replace(result, dropped=tuple(name for name in result.dropped if name != "SLURM_CLUSTERS"))

    def problem(self) -> str | None:
        if not shutil.which("sbatch"):
            return "sbatch is not on this machine's PATH: submit from a login node of the cluster, or use cluster=local"
        return ambiguous_cluster(os.environ)

    def ending(self, plan: JobPlan, *, stop_requested: bool, left: float) -> base.Ending | None:
        if left <= 0:
            return None
        slurm, job_id = Slurm(base.JOB_TIMEOUT), os.environ["LAUNCHER_JOB_ID"]
        for _ in backoff(ASKED_FOR if stop_requested else 0.0, 1.0):
            with contextlib.suppress(base.QueryError):
                state, reason = slurm.state_and_reason(job_id)
                if state == "RUNNING" or reason == "TimeLimit":
                    return None
                preempted = state == "PREEMPTED" or slurm.preempted(job_id) is not None
                if preempted and slurm.restarts(job_id) == int(os.environ.get("SLURM_RESTART_COUNT", "0")):
                    return None  # Slurm cancels it instead of requeueing it: nobody else continues it
                return base.Ending(NextReason.PREEMPTED if preempted else NextReason.SCHEDULER_ENDS, "Slurm", state)
        # Unknown. A requeue could bring back a job that its owner has deleted; without a stop request it cannot be one.
        return super().ending(plan, stop_requested=stop_requested, left=left)

    def queries(self, timeout: float) -> Slurm:
        return Slurm(timeout)

    def here(self) -> bool:
        return shutil.which("squeue") is not None

    def server(self) -> tuple[str | None, ...]:
        names = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
        return shutil.which("squeue"), *map(os.environ.get, names)

    def environment_within(self, plan: JobPlan, run: Run) -> dict[str, str]:
        environment = self.job_environment(os.environ, plan).environment
        return {name: value for name, value in environment.items() if name != "CUDA_VISIBLE_DEVICES"}  # of this job

    def requeue(self, job_id: str) -> None:
        slurm, problem = Slurm(base.JOB_TIMEOUT), base.QueryError("")
        for since in backoff(REQUEUES, 1.0):
            try:
                slurm.requeue(job_id)
                return
            except base.QueryError as error:
                if not since and not isinstance(error, base.AnswerLost):
                    raise
                problem = base.AnswerLost(str(error))
            with contextlib.suppress(base.QueryError):
                state, _ = slurm.state_and_reason(job_id)
                if state != "RUNNING":  # it was requeued after all, and this process ends soon
                    return
                problem = base.QueryError(str(problem))
        raise problem

    def preempted(self, job_id: str) -> float | None:
        return Slurm(base.JOB_TIMEOUT).preempted(job_id)

    def without(self, hosts: str, settings: Mapping[str, Any]) -> str:
        excluded = settings.get("exclude")
        names = f"{excluded},{hosts}" if excluded else hosts
        plain = not set("[],") & set(names)  # needs no quotes for Hydra and the shell
        return f"cluster.exclude={names}" if plain else f"\"cluster.exclude='{names}'\""

    def found(self) -> str:
        path = shutil.which(self.command)
        return f"Slurm (sbatch is {path})" if path else ""
