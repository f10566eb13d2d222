"""PBS as a scheduler."""

from __future__ import annotations

from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.diagnosis import PBSDiagnosis
from launcher.schedulers.scheduler import Queue, Scheduler


class PBSScheduler(Scheduler, Queue, PBSDiagnosis):
    """PBS: OpenPBS or PBS Professional."""

    name = "pbs"
    title = "PBS"

    def queries(self, timeout: float) -> PBS:
        return PBS(timeout)
