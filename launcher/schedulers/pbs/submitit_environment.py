"""submitit's environment of a task of a `PBSExecutor` job."""

from __future__ import annotations

from launcher.schedulers.functions.environment import FunctionEnvironment
from launcher.schedulers.pbs.functions import PBSFunctions


class PBSJobEnvironment(FunctionEnvironment):
    """The rank and the nodes of this process, as submitit reads them."""

    scheduler = PBSFunctions()
