"""What PBS can tell of its jobs and of its site. A submission needs none of it, so it is loaded when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.schedulers.diagnosis import ExplainsPending
from launcher.schedulers.pbs.client import PBS

if TYPE_CHECKING:
    from launcher.schedulers.explanation import Explanation, Waiting


class PBSDiagnosis(ExplainsPending):
    """PBS."""

    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        from launcher.schedulers.pbs import pending
        from launcher.schedulers.pbs.facts import Facts

        return pending.explain(waiting, Facts(PBS(timeout)))
