"""A job that starts when another one has ended: how a run goes on where jobs are not requeued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.config.schema import Scheduler
from launcher.schedulers.idempotent_submit import submit_once
from launcher.schedulers.pbs.client import PBS, TOKEN, pbs_id
from launcher.schedulers.slurm.client import Slurm
from launcher.spec.plan import JobPlan


def submit_after(
    plan: JobPlan, job_id: str, script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Submits a run's script once more; its job starts when the job with this id has ended, however it did.

    Args:
        plan: the run.
        job_id: of the job before.
        script: path of the script.
        token: what the new job is found by, if nobody hears whether it was submitted.
        environment: of sbatch or qsub.
        timeout: seconds for one command of the scheduler.

    Returns:
        The id of the new job.

    Raises:
        SubmissionError: the scheduler did not take it, or did not answer.
    """
    if plan.scheduler == Scheduler.pbs.value and "[" in pbs_id(job_id):
        return submit_behind(plan, [], script, token, environment, timeout)  # see there; the run's lease does it
    return submit_behind(plan, [job_id], script, token, environment, timeout)


def submit_behind(
    plan: JobPlan, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """The same for a job that starts when all these jobs have ended. PBS waits for no element of an array.

    Raises:
        SubmissionError: the scheduler did not take it, or did not answer.
    """
    options = dependency(plan.scheduler, jobs)
    if plan.scheduler == Scheduler.slurm.value:
        slurm = Slurm(timeout)
        options.append(f"--comment={token}")
        return submit_once(lambda: slurm.submit(script, environment, *options), lambda: slurm.find(token, plan.name))
    pbs, arguments = PBS(timeout), ["-f", "-v", f"{TOKEN}={token}", *options]
    return submit_once(lambda: pbs.submit(script, environment, *arguments), lambda: pbs.find(token, plan.name))


def dependency(scheduler: str, jobs: Sequence[str]) -> list[str]:
    """Arguments of sbatch or qsub for a job that starts when all these have ended, however they did. Pure."""
    if not jobs:
        return []
    if scheduler == Scheduler.pbs.value:
        return ["-W", f"depend=afterany:{':'.join(map(pbs_id, jobs))}"]
    return [f"--dependency=afterany:{':'.join(jobs)}"]
