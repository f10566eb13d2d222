"""Grid Engine for submitit: `submitit.AutoExecutor(folder, cluster="sge")`; see `schedulers.functions.executor`."""

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
    """The rank and the nodes of this process, as submitit reads them."""

    scheduler = SGEFunctions()


class SGEExecutor(FunctionExecutor):
    """Submits functions with qsub; see `Parameters` for what can be asked for."""

    job_class = SGEJob
    environment = SGEJobEnvironment
    scheduler = SGEFunctions()
