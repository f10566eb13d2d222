"""Whether a run that has stopped early continues in another job, or PBS starts the same one again."""

from __future__ import annotations

import math

import pytest

from launcher.failures.codes import NextReason
from launcher.schedulers.base import Ending, QueryError
from launcher.schedulers.pbs import scheduler
from launcher.schedulers.pbs.scheduler import PBSScheduler
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("record", "left", "ending"),
    [
        ({"job_state": "R"}, 60.0, None),
        # Its MoM was killed and started again: PBS requeues it, and has killed the tasks of the other nodes.
        ({"job_state": "E", "Exit_status": "-4"}, 60.0, Ending(NextReason.SCHEDULER_ENDS, "PBS", "E")),
        ({"job_state": "Q", "Exit_status": "-4"}, math.inf, Ending(NextReason.SCHEDULER_ENDS, "PBS", "Q")),
        ({"job_state": "E"}, 0.0, None),  # at the end of its wall time
        (None, 60.0, None),
        (QueryError("no answer"), 60.0, None),
    ],
)
def test_a_job_that_pbs_requeues_is_not_continued_by_another_one(
    monkeypatch: pytest.MonkeyPatch, record: dict[str, str] | QueryError | None, left: float, ending: Ending | None
) -> None:
    def answer(_: object, job_id: str) -> dict[str, str] | None:
        assert job_id == "7.pbs-srv"
        if isinstance(record, QueryError):
            raise record
        return record

    monkeypatch.setattr(scheduler.PBS, "record", answer)
    monkeypatch.setenv("PBS_JOBID", "7.pbs-srv")
    plan = plan_of(cluster={"scheduler": "pbs"})
    assert PBSScheduler().ending(plan, stop_requested=False, left=left) == ending
    requested = PBSScheduler().ending(plan, stop_requested=True, left=left)
    assert requested == (Ending(NextReason.STOP_REQUESTED) if left else None)
