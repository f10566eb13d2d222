"""`launcher site`: profiles from recorded answers of schedulers, and the profiles that there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import commands
from launcher.config import profiles
from launcher.config.schema import Cluster, GpuDirective, Scheduler
from launcher.errors import ConfigError, RunError
from launcher.schedulers.base import QueryError
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.slurm.client import Slurm
from launcher.sites import profile, survey
from launcher.sites.survey import Account, PBSSite, SlurmSite
from launcher.spec.limits import NodeGroup, Partition, Queue

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


def written(site: SlurmSite | PBSSite, wanted: str | None = None, name: str = "mine") -> tuple[str, dict[str, Any]]:
    """A profile's text, and what YAML makes of it."""
    text = profile.write(site, name, wanted, "2026-11-21")
    return text, yaml.safe_load(text)


def test_a_slurm_is_asked_once_for_each_thing(recorded_slurm: Slurm) -> None:
    site = survey.of_slurm(recorded_slurm)
    assert (site.cluster, site.version, site.settings["MaxArraySize"]) == ("test", "22.05.8", "1001")
    assert [each.name for each in site.partitions] == ["gpu", "debug", "big"]
    assert site.partitions[2].groups == (NodeGroup(16, 128, 515000 * 1024**2, 4, ("a100",)),)
    assert site.features["big"] == ("a100", "ib")
    assert site.accounts == (Account("proj1", default=True), Account("abacus"), Account("proj2"))
    assert site.problems == ()


def test_the_default_partition_becomes_a_profile(recorded_slurm: Slurm) -> None:
    text, values = written(survey.of_slurm(recorded_slurm))
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
    text, values = written(survey.of_slurm(recorded_slurm), "big")
    assert (values["partition"], values["gpu_type"], values["account"]) == ("big", "a100", "proj2")
    assert values["limits"] == {
        "nodes": 8, "gpus_per_node": 4, "cpus_per_node": 128, "mem_per_node": "515000M", "time": "2-00:00:00",
    }  # fmt: skip
    assert "# constraint: a100  # sinfo: features are a100, ib" in text
    assert "at least 2 nodes" in text
    with pytest.raises(ConfigError, match=r"--partition=bigg: there is no such partition\. Did you mean big"):
        written(survey.of_slurm(recorded_slurm), "bigg")


def test_what_a_site_does_not_tell_is_left_out(recorded_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (ACCOUNTS, ("scontrol", "show"), ("scontrol", "--all")):
        monkeypatch.setitem(SLURM, key, QueryError(f"{key[0]} failed (exit 1): access denied"))
    site = survey.of_slurm(recorded_slurm)
    text, values = written(site)
    assert "account" not in values
    assert text.count("# Not found out: ") == len(site.problems) == 3
    assert profile.default_name(site) == "site"


def test_a_site_without_accounting_is_not_asked_for_accounts(
    recorded_slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SLURM, ("scontrol", "show"), "AccountingStorageType   = accounting_storage/none\n")
    monkeypatch.delitem(SLURM, ACCOUNTS)
    assert survey.of_slurm(recorded_slurm).problems == ("accounts: the site keeps no accounting",)


def partition(name: str, default: bool, gpus: int, nodes: int = 4) -> Partition:
    return Partition(name, default, None, None, (NodeGroup(nodes, 8, 1024**3, gpus),))


@pytest.mark.parametrize(
    ("partitions", "chosen"),
    [
        ([partition("a", True, 2), partition("b", False, 8)], "a"),
        ([partition("a", True, 0), partition("b", False, 2), partition("c", False, 2, 9)], "c"),
        ([partition("a", True, 0), partition("b", False, 0)], "a"),
        ([partition("a", False, 0), partition("b", False, 0)], None),
    ],
)
def test_the_partition_of_a_profile_is_the_default_one_or_has_gpus(
    partitions: list[Partition], chosen: str | None
) -> None:
    found, _ = profile.choose_partition(partitions, None)
    assert (found.name if found else None) == chosen
    _, values = written(SlurmSite("c", "22", tuple(partitions)))
    assert values.get("partition") == chosen
    assert values.get("required") == (None if chosen else ["partition"])


NODES = """\
pbs-n1
     ntype = PBS
     state = free
     resources_available.arch = linux
     resources_available.host = pbs-n1
     resources_available.gpu_model = a100
     resources_available.mem = 24684092kb
     resources_available.ncpus = 8
     resources_available.ngpus = 2
     resources_available.vnode = pbs-n1
     resources_assigned.ncpus = 0

pbs-n2
     ntype = PBS
     state = offline
     resources_available.mem = 24684092kb
     resources_available.ncpus = 16
     resources_available.ngpus = 0
     resources_available.vnode = pbs-n2
"""
QUEUES = (
    '{\n    "Queue":{\n        "workq":{\n            "queue_type":"Execution",\n'
    '            "enabled":"True"\n        }\n    }\n}'
)
SERVER = (
    '{\n    "Server":{\n        "pbs-srv":{\n            "default_queue":"workq",\n'
    '            "pbs_version":"23.06.06",\n            "job_history_enable":"True"\n        }\n    }\n}'
)


@pytest.fixture
def recorded_pbs(monkeypatch: pytest.MonkeyPatch) -> PBSSite:
    answers = {"pbsnodes": NODES, "-B": SERVER, "-Q": QUEUES}

    def run(self: PBS, *command: str, good: tuple[int, ...] = (0,)) -> str:
        return answers.get(command[0]) or answers[command[1]]

    monkeypatch.setattr(PBS, "run", run)
    return survey.of_pbs(PBS(1), "23")


def test_the_default_queue_becomes_a_profile(recorded_pbs: PBSSite) -> None:
    text, values = written(recorded_pbs)
    assert values == {
        "defaults": ["pbs", "_self_"], "name": "mine", "queue": "workq", "gpu_directive": "ngpus",
        "limits": {"nodes": 2, "gpus_per_node": 2, "cpus_per_node": 16, "mem_per_node": "24105M"},
    }  # fmt: skip
    assert text.startswith("# PBS 23.06.06, server pbs-srv, as it was on 2026-11-21")
    assert "# chunk: {gpu_model: a100}  # pbsnodes: nodes differ in gpu_model=a100" in text
    assert "PBS remembers jobs that are over" in text


def test_the_limits_of_a_queue_count_more_than_its_nodes(recorded_pbs: PBSSite) -> None:
    queue = Queue("short", False, True, False, 360600, 1, 16, 0, None)
    text, values = written(replace(recorded_pbs, queues=(*recorded_pbs.queues, queue)), "short")
    assert (values["queue"], values["limits"]["nodes"], values["limits"]["time"]) == ("short", 1, "100:10:00")
    assert "resources_max.walltime" in text
    with pytest.raises(ConfigError, match=r"--queue=shor: there is no such queue\. Did you mean short"):
        written(replace(recorded_pbs, queues=(*recorded_pbs.queues, queue)), "shor")


def test_a_pbs_without_gpus_or_default_queue(recorded_pbs: PBSSite) -> None:
    bare = replace(
        recorded_pbs,
        queues=(replace(recorded_pbs.queues[0], default=False),) * 2,
        nodes=recorded_pbs.nodes[1:],
    )
    _, values = written(bare)
    assert (values["gpu_directive"], values["required"]) == ("none", ["queue"])


@pytest.mark.parametrize(
    ("value", "text"),
    [("gpu", "gpu"), ("a b", '"a b"'), ("no", '"no"'), ("1h", '"1h"'), ("x: y", '"x: y"'), (4, "4"), ("a#b", '"a#b"')],
)
def test_every_value_is_read_back_as_it_was(value: object, text: str) -> None:
    assert profile.scalar(value) == text
    assert yaml.safe_load(f"key: {profile.scalar(value)}  # where from") == {"key": value}


def cluster(**keys: Any) -> Cluster:
    return Cluster(**{"name": "mine", "scheduler": Scheduler.slurm, **keys})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"partition": "gpuu"}, "there is no such partition"),
        ({"account": "proj9"}, "cluster.account=proj9 is none of yours"),
        ({"partition": "big", "gpu_type": "h100"}, "cluster.gpu_type=h100: the nodes have a100"),
        ({"partition": "big", "constraint": "nvme"}, "no node of the partition has this feature"),
    ],
)
def test_what_no_longer_fits_a_slurm_is_told(recorded_slurm: Slurm, keys: dict[str, Any], words: str) -> None:
    found = profile.differences(cluster(**keys), survey.of_slurm(recorded_slurm))
    assert any(words in each.says for each in found if each.level.value != "ok")


def test_a_profile_that_fits_is_said_to(recorded_slurm: Slurm, recorded_pbs: PBSSite) -> None:
    fits = cluster(partition="big", gpu_type="a100", constraint="ib", account="proj2")
    assert {each.level.value for each in profile.differences(fits, survey.of_slurm(recorded_slurm))} == {"ok"}
    fits = cluster(scheduler=Scheduler.pbs, gpu_directive=GpuDirective.ngpus, chunk={"gpu_model": "a100"})
    assert {each.level.value for each in profile.differences(fits, recorded_pbs)} == {"ok"}
    wrong = cluster(scheduler=Scheduler.pbs, chunk={"gpu": "a100"})
    wrong.limits.cpus_per_node = 64
    told = [each.says for each in profile.differences(wrong, recorded_pbs) if each.level.value != "ok"]
    assert told == [
        "cluster.chunk.gpu: no node has such a resource",
        "cluster.limits.cpus_per_node=64 is more than any node has (16)",
    ]


# -- files and the command


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    return tmp_path / "cluster"


def test_nothing_is_overwritten_unless_that_is_wanted(own: Path) -> None:
    path = profiles.save("mine", "name: one\n", force=False)
    with pytest.raises(RunError, match=r"mine.yaml is there already: `--force` replaces it"):
        profiles.save("mine", "name: two\n", force=False)
    assert path.read_text() == "name: one\n"
    profiles.save("mine", "name: two\n", force=True)
    assert [file.name for file in own.iterdir()] == ["mine.yaml"]
    assert path.read_text() == "name: two\n"
    for name in ("slurm", "../x", ".x", "-x"):
        with pytest.raises(ConfigError):
            profiles.save(name, "", force=True)


def test_profiles_of_the_user_take_the_place_of_ours(own: Path) -> None:
    profiles.save("polaris", "defaults: [derecho, _self_]\nname: polaris\n", force=False)
    profiles.save("odd", "defaults:\n  - odd\n", force=False)
    found = {each.name: each for each in profiles.profiles()}
    assert (found["polaris"].own, found["polaris"].scheduler) == (True, "pbs")
    assert (found["derecho"].own, found["lumi-g"].scheduler, found["odd"].scheduler) == (False, "slurm", "")
    with pytest.raises(ConfigError, match=r"there is no profile 'derech'\. Did you mean derecho"):
        profiles.find("derech")


def test_the_command_writes_what_it_prints(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = SlurmSite("test", "22.05.8", (partition("gpu", True, 2),))
    monkeypatch.setattr(survey, "survey", lambda wanted: site)
    assert commands.main(["site", "init", "--print"]) == 0
    printed = capsys.readouterr().out
    assert not own.exists()
    assert commands.main(["site", "init"]) == 0
    assert (own / "test.yaml").read_text() == printed
    assert f"written  {own / 'test.yaml'}" in capsys.readouterr().out
    assert commands.main(["site", "show", "test"]) == 0
    assert capsys.readouterr().out == f"# {own / 'test.yaml'}\n{printed}"
    assert commands.main(["site", "check", "test"]) == 0
    assert "agree with partition gpu" in capsys.readouterr().out.replace("\n                   ", "")
    assert commands.main(["site", "list"]) == 0
    assert f"test        slurm       {own / 'test.yaml'}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="this is a Slurm: use --partition"):
        commands.main(["site", "init", "--queue=gpu"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["intt"], "there is no site command 'intt'. Did you mean init?"),
        (["show"], "`site show` needs the NAME of a profile"),
        (["list", "x"], "`site list` takes no name"),
        (["check", "x", "--force"], "--force goes with `site init`"),
        (["show", "pollaris"], "there is no profile 'pollaris'. Did you mean polaris"),
    ],
)
def test_a_wrong_command_is_told(words: list[str], told: str, own: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        commands.main(["site", *words])
    assert told in str(refusal.value)


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_where_slurm_is_silent_a_pbs_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded_pbs: PBSSite
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put(tmp_path, "sinfo", "echo 'no controller' >&2; exit 1")
    for wanted in (None, Scheduler.slurm):
        with pytest.raises(RunError, match=r"Slurm does not answer: .*no controller"):
            survey.survey(wanted)
    put(tmp_path, "qsub", "echo 'pbs_version = 23.06.06'")
    found = survey.survey(None)
    assert isinstance(found, PBSSite)
    assert found.server == "pbs-srv"


def test_a_machine_without_a_scheduler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="there is neither sinfo nor qsub on PATH: run this on a login node"):
        survey.survey(None)
