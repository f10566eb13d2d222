"""A plan that the site could never run is refused before the scheduler sees it, with the limit and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.config.schema import Limits
from launcher.errors import ConfigError
from launcher.spec.limits import check_limits
from tests.unit.plans import plan_of

LIMITS = Limits(nodes=4, gpus_per_node=2, cpus_per_node=8, mem_per_node="16G", time="2h")


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"nodes": 4, "gpus_per_node": 2, "cpus_per_proc": 4, "mem": "16G", "time": "2h"},
        {"procs_per_node": 8},
    ],
)
def test_what_the_profile_allows_passes(keys: dict[str, Any]) -> None:
    check_limits(plan_of(**keys), LIMITS)


def test_a_profile_without_limits_allows_everything() -> None:
    check_limits(plan_of(nodes=9999, gpus_per_node=99, mem="9P", time="99d"), Limits())


HERE = "the profile of cluster=here"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"nodes": 5}, f"nodes=5: {HERE} allows 4 (cluster.limits.nodes): use nodes=4 or less"),
        ({"gpus_per_node": 3}, f"gpus_per_node=3: {HERE} has 2 on a node (cluster.limits.gpus_per_node): "
                               "use gpus_per_node=2 or less"),
        ({"procs_per_node": 3, "cpus_per_proc": 3}, f"procs_per_node=3 x cpus_per_proc=3 is 9 CPUs, and {HERE} has 8 "
                                                    "on a node: lower one of the two"),
        ({"mem": "17G"}, f"mem=17G: {HERE} has 16G on a node: ask for less"),
        ({"time": "121m"}, f"time=02:01:00: {HERE} allows 02:00:00: use time=02:00:00 or less"),
    ],
)  # fmt: skip
def test_more_than_the_profile_allows_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_limits(plan_of(**keys), LIMITS)
    assert str(refusal.value) == words


@pytest.mark.parametrize("limits", [Limits(time="soon"), Limits(mem_per_node="lots")])
def test_limits_that_cannot_be_read_are_blamed_on_the_profile(limits: Limits) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.limits of the profile of cluster=here: '(soon|lots)' is not"):
        check_limits(plan_of(), limits)


def test_a_limit_of_memory_without_a_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.limits of .*: '16' has no unit: write 16G, or 16M"):
        check_limits(plan_of(), Limits(mem_per_node="16"))
