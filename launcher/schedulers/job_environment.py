"""The environment that a job inherits, and the file from which jobs read it where the scheduler passes none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher import redaction
from launcher.config import scheduler_table
from launcher.environment import secrets
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.spec.plan import JobPlan

# -- The environment that a job inherits: the user's, without variables of other jobs and launchers


# Prefixes of schedulers' variables, and MPI's variables. Those of another job would contradict those of the new job.
OF_SCHEDULERS = tuple(prefix for place in scheduler_table.OURS.values() for prefix in place.prefixes)
OF_MPI = re.compile(r"(OMPI|PMI|PMIX|PALS|HYDRA)_|MPI_LOCAL(RANKID|NRANKS)$")
OF_LAUNCHERS = re.compile(
    r"(TORCHELASTIC|LAUNCHER|SUBMITIT)_"
    r"|((LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_ADDR|MASTER_PORT)$"
)
# A function that bash exports: it could replace any command of the job script.
FUNCTIONS = re.compile(r"BASH_FUNC_")
# Variables to keep despite such a prefix: where a scheduler's configuration is, and the user's settings.
KEPT = {
    *(name for place in scheduler_table.OURS.values() for name in place.kept),
    *("LAUNCHER_RUNS_DIR", "LAUNCHER_CONFIG_DIR", "LAUNCHER_CACHE_DIR", "LAUNCHER_SECRETS_DIR", "HYDRA_FULL_ERROR"),
}


@dataclass(frozen=True)
class Scrubbed:
    """An environment without the variables of other jobs."""

    environment: dict[str, str]  # the remaining variables
    # sorted names of the removed variables; removed bash functions are not listed, as most users have some
    dropped: tuple[str, ...]


def job_environment(environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
    """Returns the environment that a new job of this plan inherits from `environ`; see `Scheduler.job_environment`."""
    return registry.scheduler(plan.cluster.scheduler).job_environment(environ, plan)


def scrubbed(
    environ: Mapping[str, str], *, kept: Collection[str] = (), own: Collection[str] = (), schedulers: bool = True
) -> Scrubbed:
    """Returns the environment without the variables of other jobs and launchers, and without bash functions.

    Args:
        environ: environment of this process.
        kept: names of variables to keep in any case.
        own: names of further variables to remove.
        schedulers: whether to remove the variables of schedulers and MPI as well.
    """
    dropped = {
        name
        for name in environ
        if name not in KEPT | set(kept)
        and (name in own or OF_LAUNCHERS.match(name) or (schedulers and _of_a_job(name)))
    }
    left = {name: value for name, value in environ.items() if name not in dropped and not FUNCTIONS.match(name)}
    return Scrubbed(left, tuple(sorted(dropped)))


def _of_a_job(name: str) -> bool:
    return name.startswith(OF_SCHEDULERS) or OF_MPI.match(name) is not None


# -- Writes `environment.sh` in the run directory, from which jobs read their environment, and hands over secrets


def write(
    run: Run, elements: Sequence[Run], plan: JobPlan, exports: Callable[[Mapping[str, str]], str]
) -> dict[str, str]:
    """Writes a job's environment before the submission; its secrets go to a private folder of the user.

    Args:
        run: the run; for a job array, the sweep's directory.
        elements: the runs of a job array; for a plain job, only the run.
        plan: the job's plan.
        exports: converts an environment to shell text that sets it.

    Returns:
        The environment for the submission command, without secrets: with qsub's -V, everybody could read them.
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

    Copies the array's environment.sh to a run that was an array element.

    Args:
        plan: plan of the run.
        run: the run.
        qsub: path of qsub, whose folder is added to this process's PATH; None: PATH stays.
    """
    if not run.has("environment.sh"):  # the run was an array element, and continues as a plain job
        shutil.copy(run.path.parent / "environment.sh", run.path)
    if qsub:
        os.environ["PATH"] += f"{os.pathsep}{Path(qsub).parent}"
    return secrets.without(os.environ, plan.env.secrets)
