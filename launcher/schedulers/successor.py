"""A job that starts when another one has ended: how a run goes on where jobs are not requeued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.schedulers import registry
from launcher.schedulers.idempotent_submit import submit_once
from launcher.spec.plan import JobPlan


def submit_after(
    plan: JobPlan, job_id: str, script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Submits a run's script once more; its job starts when the job with this id has ended, however it did.

    Where no job can wait for that one, it starts at once, and the run's lease keeps it waiting.

    Args:
        plan: the run.
        job_id: of the job before.
        script: path of the script.
        token: what the new job is found by, if nobody hears whether it was submitted.
        environment: in which it is submitted.
        timeout: seconds for one command of the scheduler.

    Returns:
        The id of the new job.

    Raises:
        SubmissionError: the scheduler did not take it, or did not answer.
    """
    jobs = [job_id] if registry.queue(plan.cluster.scheduler).can_be_waited_for(job_id) else []
    return submit_behind(plan, jobs, script, token, environment, timeout)


def submit_behind(
    plan: JobPlan, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """The same for a job that starts when all these jobs have ended.

    Raises:
        SubmissionError: the scheduler did not take it, or did not answer.
    """
    asks = registry.queue(plan.cluster.scheduler).queries(timeout)
    return submit_once(
        lambda: asks.submit_behind(jobs, script, token, environment), lambda: asks.find(token, plan.name)
    )
