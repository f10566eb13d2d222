"""What Slurm can tell of its jobs and of its site. A submission needs none of it, so it is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.schedulers.diagnosis import ExplainsPending

if TYPE_CHECKING:
    from launcher.schedulers.explanation import Explanation, Waiting


class SlurmDiagnosis(ExplainsPending):
    """Slurm."""

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.slurm import pending
        from launcher.schedulers.slurm.facts import Facts

        return pending.explain(waiting, Facts(timeout))
