"""submitit's environment of a task of a function on PBS."""

from __future__ import annotations

from launcher.schedulers.functions.environment import FunctionEnvironment
from launcher.schedulers.pbs.functions import PBSFunctions


class PBSJobEnvironment(FunctionEnvironment):
    """The rank and the nodes of this process in a PBS job, with the attributes that submitit reads."""

    scheduler = PBSFunctions()
