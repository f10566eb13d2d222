"""The profile of a Slurm, from recorded answers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from launcher.errors import ConfigError
from launcher.plan.limits import NodeGroup
from launcher.schedulers.base import QueryError
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.limits import Partition, SlurmSite, survey

# What a Slurm 22.05 of four nodes answers, and sacctmgr of a site with accounting (26.05 says the same).
SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")
ACCOUNTS = (*SACCTMGR, "user")
SLURM: dict[tuple[str, ...], Any] = {
    ("sinfo", "--all"): {
        "%P|%l|%s|%D|%c|%m|%G": "gpu*|2:00:00|1-infinite|4|4|6000|gpu:2\n"
        "debug|10:00|1-infinite|2|4|6000|gpu:2\nbig|2-00:00:00|1-8|16|128|515000|gpu:a100:4(S:0-3)\n",
        "%P|%D|%T|%f|%N|%E": "gpu*|4|idle|(null)|node[1-4]|none\nbig|16|mixed|a100,ib|n[1-16]|none\n",
    },
    ("sinfo", "--version"): "slurm 22.05.8\n",
    ("scontrol", "show"): "Configuration data as of 2026-11-21T21:00:00\n"
    "AccountingStorageType   = accounting_storage/slurmdbd\nClusterName             = test\n"
    "JobRequeue              = 1\nMaxArraySize            = 1001\nSLURM_VERSION           = 22.05.8\n\n"
    "Slurmctld(primary) at node1 is UP\n",
    ("scontrol", "--all"): "PartitionName=big AllowAccounts=proj2,proj3 Default=NO MaxNodes=8 MaxTime=2-00:00:00 "
    "MinNodes=2 State=UP TotalNodes=16 TotalCPUs=2048\n",
    ACCOUNTS: "abacus|me|proj1\nproj1|me|proj1\nproj2|me|proj1\nproj2|me|proj1\n",
    (*SACCTMGR, "associations"): "abacus|me|\nproj1|me|\nproj2|me|\nproj2|me|\n",
}  # fmt: skip


@pytest.fixture
def recorded_slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    def run(self: Slurm, *command: str) -> str:
        answer: Any = SLURM[command[: 5 if command[0] == "sacctmgr" else 2]]
        if isinstance(answer, dict):
            return str(next(text for form, text in answer.items() if command[-1].endswith(form)))
        if isinstance(answer, QueryError):
            raise answer
        return str(answer)

    monkeypatch.setattr(Slurm, "run", run)
    return Slurm(1)


def written(site: SlurmSite, wanted: str | None = None) -> tuple[str, dict[str, Any]]:
    """A profile's text, and what YAML makes of it."""
    text = "\n".join(site.profile("mine", wanted, "2026-11-21"))
    return text, yaml.safe_load(text)


def test_a_slurm_is_asked_once_for_each_thing(recorded_slurm: Slurm) -> None:
    site = survey(recorded_slurm)
    assert (site.name, site.title, site.settings["MaxArraySize"]) == ("test", "Slurm 22.05.8, cluster test", "1001")
    assert [each.name for each in site.partitions] == ["gpu", "debug", "big"]
    assert site.partitions[2].groups == (NodeGroup(16, 128, 515000 * 1024**2, 4, ("a100",)),)
    assert site.features["big"] == ("a100", "ib")
    assert (site.accounts, site.default_account) == (("proj1", "abacus", "proj2"), "proj1")
    assert site.problems == ()


def test_the_default_partition_becomes_a_profile(recorded_slurm: Slurm) -> None:
    text, values = written(survey(recorded_slurm))
    assert values == {
        "defaults": ["slurm", "_self_"], "name": "mine", "partition": "gpu", "account": "proj1",
        "gpu_directive": "gres",
        "limits": {"nodes": 4, "gpus_per_node": 2, "cpus_per_node": 4, "mem_per_node": "6000M", "time": "02:00:00"},
    }  # fmt: skip
    assert "partition: gpu  # sinfo: the default partition" in text
    assert "#   big: nodes: 16 of 128 CPUs, 515000M, 4 GPUs, at most 8 a job; up to 2-00:00:00" in text
    assert "MaxArraySize=1001" in text
    assert "JobRequeue=1" in text


def test_another_partition_has_its_own_limits_types_and_accounts(recorded_slurm: Slurm) -> None:
    text, values = written(survey(recorded_slurm), "big")
    assert (values["partition"], values["gpu_type"], values["account"]) == ("big", "a100", "proj2")
    assert values["limits"] == {
        "nodes": 8, "gpus_per_node": 4, "cpus_per_node": 128, "mem_per_node": "515000M", "time": "2-00:00:00",
    }  # fmt: skip
    assert "# constraint: a100  # sinfo: features are a100, ib" in text
    assert "at least 2 nodes" in text
    with pytest.raises(ConfigError, match=r"--partition=bigg: there is no such partition\. Did you mean big"):
        written(survey(recorded_slurm), "bigg")


def test_what_a_site_does_not_tell_is_left_out(recorded_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (ACCOUNTS, ("scontrol", "show"), ("scontrol", "--all")):
        monkeypatch.setitem(SLURM, key, QueryError(f"{key[0]} failed (exit 1): access denied"))
    site = survey(recorded_slurm)
    text, values = written(site)
    assert "account" not in values
    assert text.count("# Not found out: ") == len(site.problems) == 3
    assert site.default_name() == "site"


def test_a_site_without_accounting_is_not_asked_for_accounts(
    recorded_slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLURM, ("scontrol", "show"), "AccountingStorageType   = accounting_storage/none\n")
    monkeypatch.delitem(SLURM, ACCOUNTS)
    assert survey(recorded_slurm).problems == ("accounts: the site keeps no accounting",)


def partition(name: str, default: bool, gpus: int, nodes: int = 4) -> Partition:
    return Partition(name, default, None, None, (NodeGroup(nodes, 8, 1024**3, gpus),))


@pytest.mark.parametrize(
    ("partitions", "chosen"),
    [
        ([partition("a", True, 2), partition("b", False, 8)], "a"),
        ([partition("a", True, 0), partition("b", False, 2), partition("c", False, 2, 9)], "c"),
        ([partition("a", True, 0), partition("b", False, 0)], "a"),
        ([partition("a", False, 0), partition("b", False, 0)], None),
        ([Partition("empty", True, None, None, ())], "empty"),
    ],
)
def test_the_partition_of_a_profile_is_the_default_one_or_has_gpus(
    partitions: list[Partition], chosen: str | None
) -> None:
    _, values = written(SlurmSite("c", "Slurm 22", (), tuple(partitions), {}, (), "", {}))
    assert values.get("partition") == chosen
    assert values.get("required") == (None if chosen else ["partition"])
