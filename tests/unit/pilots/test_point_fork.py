"""The variables of a point's agent, and what is recorded of one that was killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from launcher.errors import FAILED, RESUME, RunError, UnavailableError
from launcher.failures import messages
from launcher.pilots import point_fork
from launcher.pilots.point_fork import Slot
from launcher.rendezvous.rounds import Member, placements
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Fault, every
from launcher.schedulers import topology

RANK = placements(
    [Member(0, 0, "node1", ranks=1), Member(1, 1, "node2", ranks=1)], 1, master=("node1", 1), run_id="pilot",
    round_number=0, environ={},
)[0].environment  # fmt: skip


def test_a_point_has_an_agent_of_its_own_whatever_rank_its_slot_manager_is() -> None:
    environ = {**RANK, "LAUNCHER_CORES": "16", "LAUNCHER_JOB_ID": "7", "HOME": "/root", "LAUNCHER_DEADLINE": "99"}
    slot = Slot(1, variables={"CUDA_VISIBLE_DEVICES": "3"})
    found = point_fork.environment(environ, Attempt(Run(Path("/runs/lr/5")), 2), slot, "node2")
    assert found.keys() & {*RANK, "LAUNCHER_CORES"} <= {"LAUNCHER_HOSTS"}
    place = topology.derive(found, "node2", lambda path: "")
    assert (place.source, place.world_size, place.hosts) == ("launcher", 1, ("node2",))
    kept = {"HOME": "/root", "LAUNCHER_DEADLINE": "99", "CUDA_VISIBLE_DEVICES": "3", "LAUNCHER_ATTEMPT": "2"}
    assert kept.items() <= found.items()


def test_a_point_that_was_killed_has_a_cause_even_if_nothing_of_its_attempt_was_written(tmp_path: Path) -> None:
    run = Run(tmp_path / "5")
    Path(run.path, "attempts").mkdir(parents=True)
    for asked in (False, False, True):
        attempt = point_fork.begin(run)
        point_fork.close(attempt, 9, "node2", asked=asked)
        point_fork.close(attempt, 9, "node2", asked=asked)  # it has ended once
    first, second, third = (attempt.events() for attempt in run.attempts())
    causes = [messages.of_fault(fault) for fault in every([*first, *second], Fault)]
    assert causes == ["the task on node2: killed by SIGKILL"] * 2
    assert [end.code for end in every([*first, *second, *third], Ended)] == [137] * 3
    assert not every(third, Fault)


@pytest.mark.parametrize(
    ("error", "code"), [(UnavailableError("late"), RESUME), (RunError("others can write"), FAILED)]
)
def test_an_agent_that_cannot_begin_leaves_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    """Without it the point would be called lost, with nothing that says why."""

    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(point_fork, "_agent", fails)
    run = Run(tmp_path / "5")
    Path(run.path, "attempts").mkdir(parents=True)
    attempt = point_fork.begin(run)
    with pytest.raises(RunError) if code == FAILED else contextlib.nullcontext():
        point_fork._recorded(attempt, Slot(0), "node1")
    assert [end.code for end in every(attempt.events(), Ended)] == [code]
