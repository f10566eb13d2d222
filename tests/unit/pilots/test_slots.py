"""How slots share the CPUs and GPUs of a node."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import NO_RETRY
from launcher.pilots import point_fork
from launcher.pilots.manager import threads_of_points
from launcher.pilots.point_fork import TooFewGpus


@pytest.mark.parametrize(
    ("count", "per_slot", "there", "shares"),
    [
        (4, 1, 4, [(0,), (1,), (2,), (3,)]),
        (2, 2, 4, [(0, 1), (2, 3)]),
        (8, 1, 4, [(0,), (1,), (2,), (3,), (0,), (1,), (2,), (3,)]),
        (3, 2, 4, [(0, 1), (2, 3), (0, 1)]),
        (2, 0, 0, [(), ()]),
    ],
)
def test_the_gpus_of_slots(count: int, per_slot: int, there: int, shares: list[tuple[int, ...]]) -> None:
    assert [point_fork.gpus_of(slot, per_slot, there) for slot in range(count)] == shares


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 8))
def test_gpus_are_shared_evenly(count: int, per_slot: int, there: int) -> None:
    found = [gpu for slot in range(count) for gpu in point_fork.gpus_of(slot, min(per_slot, there), there)]
    uses = [found.count(gpu) for gpu in range(there)]
    assert max(uses) - min(uses) <= 1
    assert len(found) == count * min(per_slot, there)


@pytest.mark.parametrize(
    ("shown", "places", "mask"),
    [(None, (2, 3), "2,3"), ("4,5,6,7", (2, 3), "6,7"), ("GPU-a, GPU-b", (1,), "GPU-b")],
)
def test_a_slot_sees_its_part_of_what_the_scheduler_shows(
    shown: str | None, places: tuple[int, ...], mask: str
) -> None:
    environ = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert point_fork.mask(environ, places, "CUDA_VISIBLE_DEVICES") == {"CUDA_VISIBLE_DEVICES": mask}


@pytest.mark.parametrize(
    ("shown", "place", "number"),
    [("", 0, "0 GPUs"), ("3", 1, "1 GPU"), ("NoDevFiles", 0, "0 GPUs"), ("1,-1,2", 1, "1 GPU")],
)
def test_fewer_gpus_than_the_pilot_asked_for_are_refused(shown: str, place: int, number: str) -> None:
    with pytest.raises(TooFewGpus, match=rf"CUDA_VISIBLE_DEVICES={shown} shows {number} .*sweep\.gpus") as refused:
        point_fork.mask({"CUDA_VISIBLE_DEVICES": shown}, (place,), "CUDA_VISIBLE_DEVICES")
    assert refused.value.exit_code == NO_RETRY


def test_slots_have_cpus_that_the_process_may_use() -> None:
    found = point_fork.slots_of_node(2, {}, gpus_per_point=0, gpus=0, cpus=1)
    assert [slot.number for slot in found] == [0, 1]
    assert all(set(slot.cpus) <= os.sched_getaffinity(0) for slot in found)
    assert all(slot.variables == {} for slot in found)


@pytest.mark.parametrize(
    ("variables", "of_points"),
    [
        ({"OMP_NUM_THREADS": "16"}, "2"),  # of the pilot's job, for 8 slots
        ({"OMP_NUM_THREADS": "12", "LAUNCHER_CORES": "12"}, "2"),  # of its agent, on a node with fewer cores
        ({"OMP_NUM_THREADS": "3", "LAUNCHER_CORES": "16"}, None),  # the user's
        ({}, None),
    ],
)
def test_points_have_threads_for_their_own_cpus(variables: dict[str, str], of_points: str | None) -> None:
    assert threads_of_points(variables, 16, 2).get("OMP_NUM_THREADS") == of_points
