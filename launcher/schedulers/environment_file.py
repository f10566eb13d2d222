"""Writes `environment.sh` in the run directory, from which jobs read their environment, and hands over secrets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher import redaction
from launcher.environment import secrets
from launcher.runs.directory import Run
from launcher.schedulers.job_environment import job_environment
from launcher.spec.plan import JobPlan


def write(
    run: Run, elements: Sequence[Run], plan: JobPlan, exports: Callable[[Mapping[str, str]], str]
) -> dict[str, str]:
    """Writes a job's environment before the submission; its secrets go to a private folder of the user.

    run: the run, or for a job array the sweep's directory; elements: the array's runs, or the run alone.
    Returns the environment for the submission command, without secrets: with qsub's -V, everybody could read them.
    """
    environment = job_environment(os.environ, plan).environment
    hidden = redaction.secrets_in(environment, plan.env.secrets)
    public = secrets.without(environment, plan.env.secrets)
    run.write_environment(exports(public) + "".join(f"# not here: {name}\n" for name in hidden))
    folder = plan.secrets_dir or str(secrets.folder())
    secrets.hand_over([str(each.path) for each in elements], hidden, exports(hidden), folder)
    return secrets.without(os.environ, plan.env.secrets)


def within_job(plan: JobPlan, run: Run, qsub: str | None) -> dict[str, str]:
    """Prepares a submission from within a job of the run, and returns the environment for the submission command.

    A run that was an array element gets a copy of environment.sh. qsub's folder is added to this process's PATH.
    """
    if not run.has("environment.sh"):  # the run was an array element, and continues as a plain job
        shutil.copy(run.path.parent / "environment.sh", run.path)
    if qsub:
        os.environ["PATH"] += f"{os.pathsep}{Path(qsub).parent}"
    return secrets.without(os.environ, plan.env.secrets)
