"""The interface of schedulers/functions/ for PBS, with which submitit functions are submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.schedulers.detect import Kind
from launcher.schedulers.functions.scheduler import FIRST_JOB, FunctionScheduler
from launcher.schedulers.pbs import pbsdsh
from launcher.schedulers.pbs.commands import PBS, TOKEN, array_of, pbs_id
from launcher.schedulers.pbs.environment import pbs_environment
from launcher.schedulers.pbs.parameters import Parameters
from launcher.schedulers.pbs.task import exports


class PBSFunctions(FunctionScheduler):
    """PBS as a scheduler of submitit functions."""

    kind = Kind.PBS
    parameters = Parameters

    def queries(self, timeout: float = 60) -> PBS:
        return PBS(timeout)

    def array_of(self, job_id: str) -> str:
        return array_of(job_id)

    def exports(self, environ: Mapping[str, str]) -> str:
        return exports(pbs_environment(environ).environment)

    def largest_array(self, queue: str | None) -> int | None:
        return PBS().max_subjobs(queue)

    def output(self, job_id: str) -> str:
        return f"{pbs_id(job_id)}.OU"

    def find(self, command: str) -> str | None:
        return pbsdsh.find(command)

    def resubmission(self, script: str, token: str, first: str) -> tuple[str, tuple[str, ...]]:
        plain = re.sub(r"^#PBS -J .*\n", "", script, flags=re.MULTILINE)
        return plain, ("-f", "-v", f"{FIRST_JOB}={first},{TOKEN}={token}")
