"""What a scheduler can tell of its jobs and of its site. Each ability is a class, and who has it inherits it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.schedulers.explanation import Explanation, Waiting


class ExplainsPending(ABC):
    """It tells why a job waits."""

    @abstractmethod
    def explain(self, waiting: Waiting, timeout: float) -> Explanation:
        """Why a job waits.

        Args:
            waiting: the run, and its job.
            timeout: seconds that one question may take.

        Raises:
            QueryError: not even the job could be asked for.
        """
