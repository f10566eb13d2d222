"""An allocation that is held already: whether a run has room in it."""

from __future__ import annotations

import pytest

from launcher.errors import ConfigError
from launcher.schedulers.base import Allocation
from launcher.schedulers.registry import allocation, require_room
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("told", "cpus"),
    [("4", (4,)), ("4(x3)", (4, 4, 4)), ("16(x2),8", (16, 16, 8)), ("2,4(x2),1", (2, 4, 4, 1)), ("", ()), (None, ())],
)
def test_slurm_tells_the_cpus_of_each_node(told: str | None, cpus: tuple[int, ...]) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": str(len(cpus))}
    environ |= {} if told is None else {"SLURM_JOB_CPUS_PER_NODE": told}
    assert allocation(environ) == Allocation(len(cpus), "srun", cpus, "7")


@pytest.mark.parametrize(
    ("held", "keys", "words"),
    [
        (Allocation(2, "srun", (4, 4)), {"nodes": 2, "cpus_per_proc": 4}, None),
        (Allocation(2, "srun", (4, 4)), {"nodes": 2, "procs_per_node": 2, "cpus_per_proc": 2}, None),
        (Allocation(2, "srun", (4, 4)), {"nodes": 3}, "holds 2: use nodes=2"),
        (Allocation(2, "srun", (4, 4)), {"nodes": 2, "cpus_per_proc": 5}, "are 5 CPUs on each of 2 nodes, .* has 4: "),
        (Allocation(1, "srun", (1,)), {"procs_per_node": 2, "cpus_per_proc": 4}, "are 8 CPUs on each of 1 node, .*1: "),
        # not all nodes have as many
        (Allocation(3, "srun", (16, 16, 8)), {"nodes": 2, "cpus_per_proc": 16}, None),
        (Allocation(3, "srun", (8, 16, 16)), {"nodes": 3, "cpus_per_proc": 16}, "has 8: "),
        (Allocation(3, "srun", (16, 16, 8)), {"nodes": 2, "min_nodes": 1, "cpus_per_proc": 16}, "on each of 3 nodes"),
        # unknown: of PBS, or of a job of several parts
        (Allocation(2, "pbsdsh"), {"nodes": 2, "cpus_per_proc": 99}, None),
        (Allocation(2, "srun", (4,)), {"nodes": 2, "cpus_per_proc": 99}, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_srun_is_asked(
    held: Allocation, keys: dict[str, int], words: str | None
) -> None:
    plan = plan_of(**keys)
    if words is None:
        require_room(held, plan)
    else:
        with pytest.raises(ConfigError, match=words):
            require_room(held, plan)
