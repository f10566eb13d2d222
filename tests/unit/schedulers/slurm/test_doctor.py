"""What `doctor` tells of a Slurm."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config.schema import Cluster, Limits
from launcher.plan.limits import NodeGroup
from launcher.schedulers.site import Level
from launcher.schedulers.slurm import limits
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.limits import Partition
from tests.unit.plans import make_cluster

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM

NODE = NodeGroup(4, 16, 64 * 2**30, 2)
GPU = Partition("gpu", True, 7200, None, (NODE,))
DEBUG = Partition("debug", False, 600, 2, (NodeGroup(2, 16, 64 * 2**30, 0), NODE))
SLURM = make_cluster("slurm", name="site")


@pytest.mark.parametrize(
    ("cluster", "partitions", "level", "words"),
    [
        (SLURM, [GPU, DEBUG], [OK, OK, OK], "gpu (default, this profile's): nodes: 4 of 16 CPUs, 64G, 2 GPUs; up to"),
        (replace(SLURM, partition="debug"), [GPU, DEBUG], [OK, OK, OK], "at most 2 a job; up to 00:10:00"),
        (replace(SLURM, partition="gpuu"), [GPU], [OK, PROBLEM], "Did you mean gpu"),
        (SLURM, [DEBUG], [OK, PROBLEM], "no default partition"),
        (replace(SLURM, limits=Limits(nodes=4, time="2h")), [GPU], [OK, OK], "(nodes, time) agree with partition gpu"),
        (
            replace(SLURM, limits=Limits(nodes=9, mem_per_node="1T")),
            [GPU],
            [OK, WARNING],
            "limits.nodes=9 is more than",
        ),
        (replace(SLURM, limits=Limits(time="3 moons")), [GPU], [OK, PROBLEM], "3 moons"),
        (SLURM, [Partition(f"p{n}", n == 0, None, None, ()) for n in range(40)], [OK] * 32, "and 10 more"),
    ],
)
def test_partitions_are_listed_and_the_profile_is_compared(
    cluster: Cluster, partitions: list[Partition], level: list[Level], words: str
) -> None:
    found = list(limits.compared(cluster, partitions))
    lines = limits.lines(partitions, limits.wanted(cluster, partitions))
    assert ([OK] * len(lines) + [each.level for each in found]) == level
    assert any(words in each for each in [*lines, *(each.says for each in found)])


@pytest.mark.parametrize(("sacct", "told"), [("exit 1", "does without (sacct failed"), ("exit 0", "sacct answered in")])
def test_accounting_is_told_and_never_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sacct: str, told: str
) -> None:
    (tmp_path / "sacct").write_text(f"#!/bin/sh\n{sacct}\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = limits.accounting(Slurm())
    assert found.level is OK
    assert told in found.says
