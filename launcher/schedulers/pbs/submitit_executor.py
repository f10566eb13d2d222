"""submitit's executor and job classes for PBS: `submitit.AutoExecutor(folder, cluster="pbs")`.

See `launcher.schedulers.functions.executor`.
"""

from __future__ import annotations

from launcher.schedulers.functions.executor import FunctionExecutor, FunctionJob, JobWatcher
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.pbs.functions import PBSFunctions
from launcher.schedulers.pbs.submitit_environment import PBSJobEnvironment


class PBSJob(FunctionJob):
    """A submitit job on PBS."""

    scheduler = PBSFunctions()
    watcher = JobWatcher(PBS())


class PBSExecutor(FunctionExecutor):
    """Submits functions with PBS's qsub; `parameters.Parameters` documents the parameters."""

    job_class = PBSJob
    environment = PBSJobEnvironment
    scheduler = PBSFunctions()
