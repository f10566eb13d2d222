"""The environment that a job inherits: the user's, without what another job or launcher left in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config.schema import Scheduler
from launcher.spec.plan import JobPlan

# Places in somebody else's job: they would contradict those of the new one.
OF_SCHEDULERS = re.compile(r"(SLURM|SLURMD|SBATCH|PBS|OMPI|PMI|PMIX|PALS|HYDRA)_|MPI_LOCAL(RANKID|NRANKS)$")
OF_LAUNCHERS = re.compile(
    r"(TORCHELASTIC|LAUNCHER|SUBMITIT)_"
    r"|((LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_ADDR|MASTER_PORT)$"
)
# A function that bash exports: it would take the place of any command of the job's script.
FUNCTIONS = re.compile(r"BASH_FUNC_")
# Where the configuration of a scheduler is, and settings that are nobody's place.
KEPT = {
    *("SLURM_CONF", "PBS_CONF_FILE", "PBS_EXEC", "PBS_SERVER", "PBS_DEFAULT"),
    *("LAUNCHER_RUNS_DIR", "LAUNCHER_CONFIG_DIR", "LAUNCHER_CACHE_DIR", "LAUNCHER_SECRETS_DIR", "HYDRA_FULL_ERROR"),
}
# What PBS sets anew in each job: a folder on each node, its own word on CPUs, and where it is.
OF_PBS = {"TMPDIR", "NCPUS", "ENVIRONMENT"}
# sbatch puts these above the script's own lines (man sbatch, INPUT ENVIRONMENT VARIABLES); sites use them as defaults.
DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
}


@dataclass(frozen=True)
class Scrubbed:
    """What is left, and the names of what was dropped, but for functions: `module` is one of nearly everybody."""

    environment: dict[str, str]
    dropped: tuple[str, ...]


def job_environment(environ: Mapping[str, str], plan: JobPlan) -> Scrubbed:
    """The environment for a new job.

    Defaults of a site such as SBATCH_ACCOUNT are kept where the plan says nothing of the kind, and inside a held
    allocation so are the scheduler's variables: srun lives on them.
    """
    kept = {variable for variable, key in DEFAULTS.items() if getattr(plan, key) is None}
    if plan.scheduler == Scheduler.pbs.value:
        return pbs_environment(environ)
    return _without(environ, kept, set(), schedulers=plan.scheduler != Scheduler.allocation.value)


def pbs_environment(environ: Mapping[str, str]) -> Scrubbed:
    """The environment for a job of PBS."""
    # Inside of a job it is that job's number of CPUs, elsewhere the user's wish.
    threads = {"OMP_NUM_THREADS"} if "PBS_JOBID" in environ else set()
    return _without(environ, set(), OF_PBS | threads)


def _without(environ: Mapping[str, str], kept: set[str], own: set[str], *, schedulers: bool = True) -> Scrubbed:
    dropped = {
        name
        for name in environ
        if name not in KEPT | kept
        and (name in own or OF_LAUNCHERS.match(name) or (schedulers and OF_SCHEDULERS.match(name)))
    }
    left = {name: value for name, value in environ.items() if name not in dropped and not FUNCTIONS.match(name)}
    return Scrubbed(left, tuple(sorted(dropped)))
