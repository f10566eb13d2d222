"""Each profile has its site's rules beside it, and three are compared with their twins; `make twins` does all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.config import profiles
from launcher.paths import resource
from tests.cluster.slurm_cluster import SlurmCluster
from tests.twins import check, pbs, rules, slurm

PROFILES = {path.stem for path in (resource("conf") / "cluster").glob("*.yaml")} - profiles.bases()
IN_FULL = (
    "juwels-booster",
    "marenostrum5",
    "polaris",
)  # a suffix of hosts; QOS, accounts and a filter; routes and hooks


def test_every_profile_has_rules() -> None:
    assert set(rules.sites()) == PROFILES


@pytest.mark.parametrize("name", rules.sites())
def test_a_twin_can_be_made_of_the_rules(name: str) -> None:
    site = rules.load(name)
    assert site.refused
    if site.scheduler == "slurm":
        made = slurm.site(site)
        assert len(made.partitions) == len(site.pools)
        assert "@" not in made.filter
    elif site.scheduler == "pbs":
        queues = [pbs.queue(each, pool, inner=False) for each, pool in site.pools.items()]
        assert {name for queue in queues for name in queue["routes"]} <= set(site.pools)


@pytest.mark.ci
@pytest.mark.parametrize("name", IN_FULL)
def test_a_twin_and_the_launcher_agree(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    site = rules.load(name)
    if site.scheduler == "slurm" and (reason := SlurmCluster.missing(accounting=bool(site.accounts))):
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(reason)
        pytest.skip(reason)
    request.getfixturevalue("ran_against")(site.scheduler, f"the twin of {name}")
    with check.twin(site, tmp_path) as twin:
        for _, compared in twin.checks():
            compared()
