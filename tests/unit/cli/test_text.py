"""What is told of a plan before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.cli.text import bound_to
from launcher.config.schema import LaunchMode
from launcher.errors import ConfigError
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


POLARIS = {"cluster": {"node_type": "polaris"}, "gpus_per_node": 4, "procs_per_node": 2, "cpus_per_proc": 16}


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({}, ["on a whole node of type polaris:", "  CPUs 8-15,24-31,40-47,56-63: local rank 0, GPU 0",
              "  CPUs 0-7,16-23,32-39,48-55: local rank 1, GPU 1, mlx5_1"]),
        ({"launch": {"bind": "core"}, "cpus_per_proc": 2},
         ["on a whole node of type polaris:", "  CPUs 24,56: local rank 0, GPU 0",
          "  CPUs 16,48: local rank 1, GPU 1, mlx5_1"]),
        ({"cluster": {"node_type": "polaris", "nics": ["hsn1", "hsn7"]}},
         ["on a node of type polaris nothing: cluster.nics names hsn7, and there is mlx5_0, mlx5_1"]),
        ({"procs_per_node": 33, "gpus_per_node": 0},
         ["on a node of type polaris nothing: 33 ranks and 32 cores"]),
    ],
)  # fmt: skip
def test_what_is_bound_where_the_profile_knows_the_type_of_its_nodes(keys: dict[str, Any], shown: list[str]) -> None:
    assert bound_to(plan_of(**{**POLARIS, **keys}))[1:] == shown


def test_a_type_of_node_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.node_type=poaris: there is no such type of node\. Did you mean"):
        plan_of(cluster={"node_type": "poaris"})
