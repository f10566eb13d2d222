"""A plan is compared with the limits of the job that sbatch would make of it, at the partition where it would go.

The texts were printed by Slurm 22.05.8.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from launcher.config.schema import Limits
from launcher.errors import ConfigError
from launcher.schedulers.base import QueryError
from launcher.schedulers.site import Level
from launcher.schedulers.slurm import client, limits
from launcher.schedulers.slurm.client import Slurm
from launcher.schedulers.slurm.limits import compare, default_qos, partitions_of
from tests.unit.plans import make_cluster, plan_of

OK, WARNING = Level.OK, Level.WARNING

SINFO = "gpu*|2:00:00|1-infinite|4|4|6000|gpu:2\ndebug|10:00|1-1|2|4|6000|gpu:2\n"
QOS = (
    "normal|||\nlong|PartitionMaxNodes,PartitionTimeLimit|1-00:00:00|node=2\n"
    "wide|DenyOnLimit,PartitionMaxNodes||\nfree|PartitionTimeLimit||\n"
)
OWN = "acc||long,normal\nslow|long|long,normal\nroot||normal\n"
LONG = {"cluster": {"qos": "long"}, "time": "12h"}


class Site:
    """Slurm's answers by command; an answer of None is a failure. `asked` are the commands that were run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, enforced: str, accounting: str) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, str | None] = {
            "sinfo": SINFO, "qos": QOS, "associations": OWN,
            "config": f"Configuration data as of 2026-11-24T14:30:31\nAccountingStorageEnforce = {enforced}\n"
                      f"AccountingStorageType   = {accounting}\nClusterName             = test\n",
        }  # fmt: skip
        monkeypatch.setattr(client, "query", self.query)

    def query(self, *command: str, **_: Any) -> subprocess.CompletedProcess[str]:
        about = next(name for name in self.answers if name in command)
        self.asked.append(about)
        answer = self.answers[about]
        if answer is None:
            raise QueryError(f"{command[0]} failed (exit 1): it is down")
        return subprocess.CompletedProcess(command, 0, answer, "")


@pytest.fixture
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    values = {"enforced": "associations,limits,qos", "accounting": "accounting_storage/slurmdbd"}
    return Site(monkeypatch, **{**values, **getattr(request, "param", {})})


@pytest.mark.parametrize(
    ("keys", "environ"),
    [
        ({"cluster": {"qos": "long"}, "time": "12h"}, {}),
        ({"cluster": {"qos": "free"}, "time": "30d"}, {}),
        ({"cluster": {"qos": "Long"}, "time": "12h"}, {}),
        ({"cluster": {"qos": "normal,long"}, "time": "12h"}, {}),
        ({"cluster": {"account": "Slow"}, "time": "12h"}, {}),
        ({"cluster": {"qos": "wide", "partition": "debug"}, "time": "10m", "nodes": 2}, {}),
        ({"cluster": {"qos": "long", "partition": "debug"}, "time": "1d", "nodes": 2}, {}),
        ({"time": "12h"}, {"SBATCH_QOS": "long"}),
        ({"cluster": {"account": "slow"}, "time": "12h"}, {}),  # its default QOS
        ({"time": "12h"}, {"SBATCH_ACCOUNT": "slow"}),
    ],
)
def test_a_qos_that_lifts_a_limit_of_the_partition_counts(
    site: Site, keys: dict[str, Any], environ: dict[str, str]
) -> None:
    assert compare(plan_of(**keys), environ) == ()


@pytest.mark.parametrize(
    ("keys", "environ", "words"),
    [
        ({"cluster": {"qos": "normal"}, "time": "3h"}, {}, "time=03:00:00: partition gpu ends jobs after 02:00:00"),
        ({"cluster": {"qos": "normal"}, "time": "3h"}, {"SBATCH_QOS": "long"}, "partition gpu ends jobs after 02:00"),
        ({"cluster": {"account": "acc"}, "time": "3h"}, {}, "partition gpu ends jobs after 02:00:00"),
        ({"cluster": {"qos": "nosuch"}, "time": "3h"}, {}, "partition gpu ends jobs after 02:00:00"),
        ({"cluster": {"qos": "wide"}, "time": "3h"}, {}, "partition gpu with QOS wide ends jobs after 02:00:00"),
        ({"cluster": {"qos": "long"}, "time": "2d"}, {}, "partition gpu with QOS long ends jobs after 1-00:00:00"),
        ({"cluster": {"qos": "long"}, "nodes": 3, "time": "3h"}, {}, "partition gpu with QOS long gives a job at most"),
        ({"cluster": {"qos": "free"}, "nodes": 9}, {}, "partition gpu gives a job at most 4 nodes"),
    ],
)
def test_what_its_qos_does_not_lift_is_refused(
    site: Site, keys: dict[str, Any], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        compare(plan_of(**keys), environ)


@pytest.mark.parametrize(
    ("keys", "level", "says"),
    [
        ({"qos": "long", "limits": Limits(time="12h")}, OK, "agree with partition gpu with QOS long"),
        ({"account": "slow", "limits": Limits(time="12h")}, OK, "agree with partition gpu with QOS long"),
        (
            {"qos": "long", "limits": Limits(time="2d")},
            WARNING,
            "more than partition gpu with QOS long gives (1-00:00:00)",
        ),
        ({"qos": "normal", "limits": Limits(time="12h")}, WARNING, "more than partition gpu gives (02:00:00)"),
    ],
)
def test_doctor_knows_what_a_qos_lifts(site: Site, keys: dict[str, Any], level: Level, says: str) -> None:
    (found,) = limits.with_qos(make_cluster("slurm", name="site", **keys), partitions_of(Slurm(10)))
    assert (found.level, says in found.says) == (level, True), found


def test_doctor_tells_what_it_can_if_the_qos_is_not_known(site: Site) -> None:
    site.answers["qos"] = None
    cluster = make_cluster("slurm", name="site", qos="long", limits=Limits(time="12h"))
    assert [each.level for each in limits.with_qos(cluster, partitions_of(Slurm(10)))] == [WARNING]


@pytest.mark.parametrize("asked", [{"gpus_per_node": 8}, {"nodes": 9}])
def test_a_partition_that_the_sites_filter_may_choose_is_not_known(site: Site, asked: dict[str, Any]) -> None:
    site.answers["config"] = f"{site.answers['config']}JobSubmitPlugins        = lua\n"
    (note,) = compare(plan_of(**asked), {})
    assert note.endswith("unless the site chooses another partition (JobSubmitPlugins=lua)")
    with pytest.raises(ConfigError):
        compare(plan_of(cluster={"partition": "gpu"}, **asked), {})
    site.answers["sinfo"] = SINFO.replace("*", "")  # there is no default one
    (note,) = compare(plan_of(), {})
    assert note.startswith("cluster.partition is not set")


@pytest.mark.parametrize(("partition", "level"), [(None, OK), ("gpu", WARNING)])
def test_doctor_finds_nothing_wrong_where_the_sites_filter_may_choose_the_partition(
    site: Site, partition: str | None, level: Level
) -> None:
    site.answers["config"] = f"{site.answers['config']}JobSubmitPlugins        = lua\n"
    site.answers["sinfo"] = SINFO.replace("*", "")
    cluster = make_cluster("slurm", name="site", partition=partition, qos="normal", limits=Limits(time="12h"))
    assert [each.level for each in limits.with_qos(cluster, partitions_of(Slurm(10)))] == [level]


@pytest.mark.parametrize("site", [{"enforced": "associations,qos"}], indirect=True)
def test_a_limit_of_a_qos_that_slurm_does_not_enforce_is_none(site: Site) -> None:
    assert compare(plan_of(cluster={"qos": "long"}, time="9d", nodes=4), {}) == ()


@pytest.mark.parametrize("site", [{"accounting": "(null)"}, {"accounting": "accounting_storage/none"}], indirect=True)
def test_without_accounting_there_is_no_qos(site: Site) -> None:
    with pytest.raises(ConfigError, match="partition gpu ends jobs"):
        compare(plan_of(**LONG), {})
    assert site.asked == ["sinfo", "config", "config"]


@pytest.mark.parametrize("silent", ["config", "qos", "associations"])
def test_where_the_qos_is_not_known_a_note_says_so(site: Site, silent: str) -> None:
    site.answers[silent] = None
    (note,) = compare(plan_of(time="12h"), {})
    assert note.startswith("time=12:00:00: partition gpu ends jobs after 02:00:00")
    assert "unless the job's QOS lifts this limit, which is not known (" in note
    with pytest.raises(ConfigError, match="9 CPUs"):  # no QOS lifts this
        compare(plan_of(time="12h", cpus_per_proc=9), {})


def test_what_the_partition_takes_asks_for_no_qos(site: Site) -> None:
    assert compare(plan_of(time="2h", nodes=4), {}) == ()
    assert site.asked == ["sinfo"]


@pytest.mark.parametrize(
    ("own", "theirs", "refused"),
    [(None, "debug", True), (None, "gpu", False), ("gpu", "debug", False), ("debug", "gpu", True)],
)
def test_the_partition_of_the_check_is_that_of_the_job(site: Site, own: str, theirs: str, refused: bool) -> None:
    """The plan's own, else sbatch's variable."""
    plan, environ = plan_of(cluster={"partition": own, "qos": "normal"}, time="1h"), {"SBATCH_PARTITION": theirs}
    if refused:
        with pytest.raises(ConfigError, match="partition debug ends jobs"):
            compare(plan, environ)
    else:
        assert compare(plan, environ) == ()


@pytest.mark.parametrize(
    ("text", "account", "names"),
    [
        (OWN, "acc", {"normal"}),
        (OWN, "slow", {"long"}),
        (OWN, None, {"normal", "long"}),
        ("acc||long\n", None, {"long"}),
        ("", None, {"normal"}),
        (OWN, "nosuch", {"normal"}),
    ],
)
def test_a_job_that_asks_for_no_qos_gets_a_default_one(text: str, account: str | None, names: set[str]) -> None:
    assert default_qos(text, account) == names
