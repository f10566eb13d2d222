"""Submits a run's next job, which starts when an earlier job has ended: how runs continue without a requeue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.schedulers import registry
from launcher.schedulers.run_command import submit_once
from launcher.spec.plan import JobPlan


def submit_after(
    plan: JobPlan, job_id: str, script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Resubmits the script of a run; the new job starts when the job with this id has ended, with any outcome.

    If the scheduler supports no dependency on that job (see `Queue.can_be_waited_for`), the new job may start at once;
    it then waits for the run's lease.
    Raises SubmissionError: the scheduler refused the job, or did not answer.
    """
    jobs = [job_id] if registry.queue(plan.cluster.scheduler).can_be_waited_for(job_id) else []
    return submit_behind(plan, jobs, script, token, environment, timeout)


def submit_behind(
    plan: JobPlan, jobs: Sequence[str], script: str, token: str, environment: Mapping[str, str], timeout: float
) -> str:
    """Like `submit_after`, but starts when all `jobs` have ended; raises SubmissionError."""
    asks = registry.queue(plan.cluster.scheduler).queries(timeout)
    return submit_once(
        lambda: asks.submit(script, environment, *asks.options(jobs, token)), lambda: asks.find(token, plan.name)
    )
