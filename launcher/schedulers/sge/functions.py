"""The interface of schedulers/functions/ for Grid Engine, with which submitit functions are submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.schedulers.detect import Kind
from launcher.schedulers.exports import exports
from launcher.schedulers.functions.scheduler import FIRST_JOB, FunctionScheduler
from launcher.schedulers.sge import find_command
from launcher.schedulers.sge.commands import SGE, TOKEN, array_of, sge_id
from launcher.schedulers.sge.environment import sge_environment
from launcher.schedulers.sge.parameters import Parameters


class SGEFunctions(FunctionScheduler):
    """Grid Engine as a scheduler of submitit functions."""

    kind = Kind.GRID_ENGINE
    parameters = Parameters
    usr_signal_kills = True  # -notify

    def queries(self, timeout: float = 60) -> SGE:
        return SGE(timeout)

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def exports(self, environ: Mapping[str, str]) -> str:
        return exports(sge_environment(environ).environment)

    def largest_array(self, queue: str | None) -> int | None:
        return SGE().max_array_size()

    def output(self, job_id: str) -> str:
        return f"{sge_id(job_id)}.OU"

    def find(self, command: str) -> str | None:
        return find_command.find(command)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#\$ -tc? .*\n", "", script, flags=re.MULTILINE).replace("$JOB_ID.$TASK_ID.OU", "$JOB_ID.OU")
        return plain, ("-v", f"{FIRST_JOB}={first}", "-ac", f"{TOKEN}={token}")
