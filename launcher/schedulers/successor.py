"""Submits a job that starts when another one has ended: how a run continues where jobs are not requeued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.schedulers import registry
from launcher.schedulers.idempotent_submit import submit_once
from launcher.spec.plan import JobPlan


def submit_after(
    plan: JobPlan, job_id: str, script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Resubmits the script of a run; the new job starts when the job with this id has ended, with any outcome.

    Where no job can depend on that one, the new job may start at once, and then waits for the lease of the run.

    Args:
        plan: the run.
        job_id: of the previous job.
        script: path of the script.
        token: by which the new job is found if the answer to its submission is lost.
        environment: of the submission.
        timeout: seconds for one command of the scheduler.

    Returns:
        The id of the new job.

    Raises:
        SubmissionError: the scheduler refused the job, or did not answer.
    """
    jobs = [job_id] if registry.queue(plan.cluster.scheduler).can_be_waited_for(job_id) else []
    return submit_behind(plan, jobs, script, token, environment, timeout)


def submit_behind(
    plan: JobPlan, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Resubmits the script of a run; the new job starts when all these jobs have ended, with any outcome.

    Raises:
        SubmissionError: the scheduler refused the job, or did not answer.
    """
    asks = registry.queue(plan.cluster.scheduler).queries(timeout)
    return submit_once(
        lambda: asks.submit_behind(jobs, script, token, environment), lambda: asks.find(token, plan.name)
    )
