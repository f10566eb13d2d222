"""The environment that a job inherits: the user's, without variables of other jobs and launchers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from launcher.config import scheduler_table
from launcher.schedulers import registry
from launcher.spec.plan import JobPlan
from launcher.structs import Struct

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


class Scrubbed(Struct):
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
    """Returns the environment without variables of other jobs and launchers, of schedulers and MPI, and functions."""
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
