"""Node lists are read as Slurm itself reads them."""

from __future__ import annotations

import pytest

from launcher.schedulers.topology import expand
from tests.cluster.slurm_cluster import SlurmCluster


@pytest.mark.parametrize(
    "text",
    [
        "node1",
        "node[1-4]",
        "n[08-11,3],n3",
        "n[098-101]",
        "n[08-9]",
        "n[8-011]",
        "r[1-2]n[01-02]",
        "r[1-2]c[0,5]",
        "b2,a[3-4],b1",
        "rack[001-100]node[001-100]",
    ],
)
def test_expand_agrees_with_scontrol(slurm: SlurmCluster, text: str) -> None:
    assert expand(text) == slurm.run("scontrol", "show", "hostnames", text).split()
