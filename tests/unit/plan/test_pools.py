"""What a profile says for the partition, queue or QOS of a job."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.config.schema import Pool
from launcher.plan import limits
from tests.unit.plans import make_cluster

POOLS = {
    "a": Pool(environment={"A": 1, "BOTH": "a"}, interface="ib0"),
    "b": Pool(environment={"B": 2, "BOTH": "b"}, interface="ib1"),
}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, []),
        ({"partition": "a"}, ["a"]),
        ({"partition": "a,b"}, []),
        ({"partition": "c"}, []),
        ({"scheduler": "pbs", "queue": "b@server"}, ["b"]),
        ({"scheduler": "local"}, []),
        ({"partition": "a", "qos": "b"}, ["a", "b"]),
    ],
)
def test_a_pool_is_found_by_what_the_job_asks_for(keys: dict[str, Any], found: list[str]) -> None:
    assert list(limits.pools_of(make_cluster(pools=POOLS, **keys))) == found


@pytest.mark.parametrize(
    ("keys", "environment", "interface"),
    [
        ({}, {"BOTH": "mine"}, None),
        ({"partition": "a"}, {"A": 1, "BOTH": "mine"}, "ib0"),
        ({"partition": "a", "qos": "b"}, {"A": 1, "B": 2, "BOTH": "mine"}, "ib0"),
        ({"partition": "b", "interface": "lo"}, {"B": 2, "BOTH": "mine"}, "lo"),
    ],
)
def test_what_the_cluster_itself_has_counts_more(
    keys: dict[str, Any], environment: dict[str, Any], interface: str | None
) -> None:
    merged = limits.with_pool(make_cluster(pools=POOLS, environment={"BOTH": "mine"}, **keys))
    assert (merged.environment, merged.interface) == (environment, interface)
