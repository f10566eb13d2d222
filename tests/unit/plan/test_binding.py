"""Keys about cores and network devices, as a plan keeps or refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.errors import ConfigError
from tests.unit.plans import plan_of


def test_what_a_profile_says_of_network_devices_is_in_the_plan() -> None:
    plan = plan_of(cluster={
        "nics": ["hsn0", "hsn1"], "rank_environment": {"NCCL_SOCKET_IFNAME": "{nic}", "N": 1},
        "expects": {"net": ["AWS Libfabric", "OFI"], "provider": "cxi"},
    })  # fmt: skip
    assert plan.cluster.nics == ("hsn0", "hsn1")
    assert plan.cluster.rank_environment == {"NCCL_SOCKET_IFNAME": "{nic}", "N": "1"}
    assert plan.cluster.expects == {"net": ["AWS Libfabric", "OFI"], "provider": ["cxi"]}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"cluster": {"rank_environment": {"A": "{nic}"}}}, r"cluster.rank_environment.A=\{nic\}: .* cluster.nics"),
        ({"cluster": {"rank_environment": {"A B": "1"}}}, "cluster.rank_environment: 'A B' cannot be"),
        ({"cluster": {"rank_environment": {"A": None}}}, "cluster.rank_environment.A is empty"),
        ({"cluster": {"expects": {"nett": "IB"}}}, "cluster.expects.nett: known are net, plugin, provider. Did you"),
        ({"cluster": {"expects": {"net": 3}}}, "cluster.expects.net=3 is neither"),
        ({"cluster": {"expects": {"net": []}}}, "cluster.expects.net=.* is neither"),
        ({"launch": {"bind": "all"}}, "launch.bind='all' is not"),
        ({"launch": {"bind": "map:0"}, "procs_per_node": 2}, "has lists for 1 rank, and procs_per_node=2"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_of(**keys)
