"""Refusals after which the points of a sweep wait, because the scheduler accepts more jobs when some have ended."""

from __future__ import annotations

import re

import pytest

from launcher.schedulers.pbs.client import JOB_LIMIT as PBS
from launcher.schedulers.sge.client import JOB_LIMIT as SGE
from launcher.schedulers.slurm.client import JOB_LIMIT as SLURM

POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("scheduler", "words", "limit"),
    [
        (SLURM, "sbatch: error: AssocMaxSubmitJobLimit", True),
        (SLURM, "sbatch: error: QOSMaxSubmitJobPerUserLimit", True),
        (SLURM, POLICY, True),
        (SLURM, f"sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: {POLICY}", True),
        (SLURM, f"sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}", False),
        (SLURM, f"sbatch: error: QOSMinGRES\nsbatch: error: {POLICY}", False),
        (SLURM, "sbatch: error: Slurm job queue full, sleeping and retrying", True),
        (SLURM, "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.", True),
        (SLURM, "sbatch: error: invalid partition specified: gpuu", False),
        (SLURM, "sbatch: error: Batch job submission failed: Invalid job array specification", False),
        # Those of PBS are in OpenPBS's own tests of its limits.
        (PBS, "would exceed complex's per-user limit of jobs in 'Q' state", True),
        (PBS, "Maximum number of jobs in 'Q' state for user me already in complex", True),
        (PBS, "would exceed queue generic's limit on resource ncpus in complex", True),
        (PBS, "Job violates queue and/or server resource limits", False),
        (PBS, "Array job exceeds server or queue size limit", False),
        # max_u_jobs, max_jobs, max_aj_tasks
        (SGE, "job rejected: only 3 jobs are allowed per user (current job count: 3).", True),
        (SGE, "job rejected: only 10000 jobs are allowed per cluster.", True),
        (SGE, "job rejected: you tried to submit a job with more than 75000 tasks.", False),
    ],
)
def test_words_of_a_limit_of_jobs(scheduler: re.Pattern[str], words: str, limit: bool) -> None:
    assert (scheduler.search(words) is not None) is limit
