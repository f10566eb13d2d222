"""submitit's executor and job classes for Grid Engine: `submitit.AutoExecutor(folder, cluster="sge")`.

See `launcher.schedulers.functions.executor`.
"""

from __future__ import annotations

from launcher.schedulers.functions.environment import FunctionEnvironment
from launcher.schedulers.functions.executor import FunctionExecutor, FunctionJob, JobWatcher
from launcher.schedulers.sge.commands import SGE
from launcher.schedulers.sge.functions import SGEFunctions


class SGEJob(FunctionJob):
    """A submitit job on Grid Engine."""

    scheduler = SGEFunctions()
    watcher = JobWatcher(SGE())


class SGEJobEnvironment(FunctionEnvironment):
    """The rank and the nodes of this process in a Grid Engine job, with the attributes that submitit reads."""

    scheduler = SGEFunctions()


class SGEExecutor(FunctionExecutor):
    """Submits functions with Grid Engine's qsub; `parameters.Parameters` documents the parameters."""

    job_class = SGEJob
    environment = SGEJobEnvironment
    scheduler = SGEFunctions()
