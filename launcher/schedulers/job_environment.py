"""Which environment variables reach a job: the user's, but those of other jobs and launchers, and bash functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from launcher.config.scheduler_table import OURS
from launcher.fast_dataclasses import Struct

# Prefixes of schedulers' variables, and MPI's variables. Those of another job would contradict those of the new job.
OF_SCHEDULERS = tuple(prefix for place in OURS.values() for prefix in place.prefixes)
OF_MPI = re.compile(r"(OMPI|PMI|PMIX|PALS|HYDRA)_|MPI_LOCAL(RANKID|NRANKS)$")
OF_LAUNCHERS = re.compile(
    r"(TORCHELASTIC|LAUNCHER|SUBMITIT)_"
    r"|((LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_ADDR|MASTER_PORT)$"
)
# A function that bash exports: it could replace any command of the job script.
FUNCTIONS = re.compile(r"BASH_FUNC_")
# Variables to keep despite such a prefix: where a scheduler's configuration is, and the user's settings.
KEPT = {
    *(name for place in OURS.values() for name in place.kept),
    *("LAUNCHER_RUNS_DIR", "LAUNCHER_CONFIG_DIR", "LAUNCHER_CACHE_DIR", "LAUNCHER_SECRETS_DIR"),
    *("LAUNCHER_TRUSTED_FOLDERS", "HYDRA_FULL_ERROR"),
}


class Scrubbed(Struct):
    environment: dict[str, str]  # without the variables of other jobs
    # sorted names of the removed variables, without bash functions, of which most users have some
    dropped: tuple[str, ...]


def scrubbed(
    environ: Mapping[str, str], *, kept: Collection[str] = (), own: Collection[str] = (), schedulers: bool = True
) -> Scrubbed:
    """Returns the environment without variables of other jobs and launchers, of schedulers and MPI, and functions."""

    def of_others(name: str) -> bool:
        of_a_job = schedulers and (name.startswith(OF_SCHEDULERS) or OF_MPI.match(name))
        return name not in KEPT and name not in kept and bool(name in own or OF_LAUNCHERS.match(name) or of_a_job)

    dropped = set(filter(of_others, environ))
    left = {name: value for name, value in environ.items() if name not in dropped and not FUNCTIONS.match(name)}
    return Scrubbed(left, tuple(sorted(dropped)))
