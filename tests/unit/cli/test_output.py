"""What is told of a plan before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.cli.output import bound_to
from launcher.config.schema import LaunchMode
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({}, []),
        ({"procs_per_node": 2}, ["cores of its part (launch.bind=auto), decided on each node"]),
        ({"gpus_per_node": 2}, ["cores next to its GPU (launch.bind=auto), decided on each node"]),
        ({"procs_per_node": 2, "launch": {"mode": LaunchMode.tasks}}, ["what the scheduler binds each task to"]),
        ({"launch": {"bind": "none"}}, ["nothing"]),
        ({"procs_per_node": 2, "launch": {"bind": "map:0-1:5:7"}}, ["CPUs 0-1: local rank 0", "CPUs 5: local rank 1"]),
    ],
)
def test_what_is_known_of_cores_before_a_node_is(keys: dict[str, Any], shown: list[str]) -> None:
    assert bound_to(plan_of(**keys)) == shown
