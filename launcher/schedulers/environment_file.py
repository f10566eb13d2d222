"""The environment of jobs that read it from a file, `environment.sh` in the run directory, and their secrets."""

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
    """Writes the environment of a job before it is submitted, with its secrets in a private folder of the user.

    Args:
        run: the run, or for an array the sweep.
        elements: the runs of an array; for a plain job the run.
        plan: of the job.
        exports: returns shell text that sets an environment.

    Returns:
        The environment for the command that submits the job, without secrets: a default of the site (-V) may show it.
    """
    environment = job_environment(os.environ, plan).environment
    hidden = redaction.secrets_in(environment, plan.env.secrets)
    public = secrets.without(environment, plan.env.secrets)
    run.write_environment(exports(public) + "".join(f"# not here: {name}\n" for name in hidden))
    folder = plan.secrets_dir or str(secrets.folder())
    secrets.hand_over([str(each.path) for each in elements], hidden, exports(hidden), folder)
    return secrets.without(os.environ, plan.env.secrets)


def within_job(plan: JobPlan, run: Run, qsub: str | None) -> dict[str, str]:
    """Returns the environment in which a job submits the next one of its run, and adds the folder of `qsub` to PATH."""
    if not run.has("environment.sh"):  # the run was an element of an array, and continues alone
        shutil.copy(run.path.parent / "environment.sh", run.path)
    if qsub:
        os.environ["PATH"] += f"{os.pathsep}{Path(qsub).parent}"
    return secrets.without(os.environ, plan.env.secrets)
