"""The variables of a point's agent, and what is recorded of one that was killed."""

from __future__ import annotations

from pathlib import Path

from launcher.failures import text
from launcher.pilots import point_fork
from launcher.pilots.slots import Group, Slot, group_of
from launcher.rendezvous.protocol import Member
from launcher.rendezvous.rank_environment import environment_of
from launcher.runs.claims import Manager
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Fault, every
from launcher.schedulers import topology

RANK = environment_of(
    [Member(0, 0, "node1", ranks=1), Member(1, 1, "node2", ranks=1)], 1, 0, master=("node1", 1), run_id="pilot",
    round_number=0, environ={},
)  # fmt: skip


def test_a_point_has_an_agent_of_its_own_whatever_rank_its_slot_manager_is() -> None:
    environ = {**RANK, "LAUNCHER_JOB_ID": "7", "HOME": "/root", "LAUNCHER_DEADLINE": "99"}
    slot = Slot(1, variables={"CUDA_VISIBLE_DEVICES": "3"})
    group = Group(Manager(0, 0, 0, 1), ("node2",), 0)
    found = point_fork.environment(environ, Attempt(Run(Path("/runs/lr/5")), 2), slot, group)
    assert found.keys() & RANK.keys() <= {"LAUNCHER_HOSTS"}
    place = topology.derive(found, "node2", lambda path: "")
    assert (place.source, place.world_size, place.hosts) == ("launcher", 1, ("node2",))
    kept = {"HOME": "/root", "LAUNCHER_DEADLINE": "99", "CUDA_VISIBLE_DEVICES": "3", "LAUNCHER_ATTEMPT": "2"}
    assert kept.items() <= found.items()


def test_the_agents_of_a_point_on_several_nodes_have_their_places_among_these() -> None:
    """The second group of a pilot of four nodes."""
    places = []
    for node in (2, 3):
        mine = Manager(0, 0, 0, node)
        group = group_of(mine, ["a", "b", "c", "d"], 2)
        assert group is not None
        found = point_fork.environment(
            {**RANK, "LAUNCHER_JOB_ID": "7"}, Attempt(Run(Path("/runs/lr/5")), 2), Slot(0), group
        )
        place = topology.derive(found, "c", lambda path: "")
        places.append((place.rank, place.node_rank, place.world_size, place.hosts, place.master, place.job))
    assert places == [(rank, rank, 2, ("c", "d"), "c", f"7-{Path('/runs/lr/5').name}-2") for rank in (0, 1)]


def test_a_point_that_was_killed_has_a_cause_even_if_nothing_of_its_attempt_was_written(tmp_path: Path) -> None:
    run, group = Run(tmp_path / "5"), Group(Manager(0, 0, 0, 1), ("node2",), 0)
    Path(run.path, "attempts").mkdir(parents=True)
    for asked in (False, False, True):
        attempt = point_fork.begin(run, group)
        point_fork.close(attempt, 9, "node2", asked=asked)
        point_fork.close(attempt, 9, "node2", asked=asked)  # it has ended once
    first, second, third = (attempt.events() for attempt in run.attempts())
    causes = [text.of_fault(fault) for fault in every([*first, *second], Fault)]
    assert causes == ["the task on node2: killed by SIGKILL"] * 2
    assert [end.code for end in every([*first, *second, *third], Ended)] == [137] * 3
    assert not every(third, Fault)
