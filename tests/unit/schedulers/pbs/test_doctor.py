"""What `doctor` tells of a PBS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher import schedulers
from launcher.config.schema import Cluster, Limits
from launcher.schedulers.pbs import limits, scheduler
from launcher.schedulers.pbs.client import PBSQueue
from launcher.schedulers.pbs.scheduler import PBSScheduler
from launcher.schedulers.qsub import Qsub, QsubKind
from launcher.schedulers.site import Level
from tests.unit.plans import make_cluster

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


@pytest.mark.parametrize(
    ("qsub", "found"),
    [
        (Qsub(QsubKind.NONE), ""),
        (Qsub(QsubKind.PBS, "/opt/pbs/bin/qsub", "23.06", "pbs_version = 23.06"),
         "PBS 23.06 (/opt/pbs/bin/qsub --version says pbs_version = 23.06)"),
        (Qsub(QsubKind.SLURM, "/usr/bin/qsub", evidence="a script that calls Slurm"),
         "a qsub that is not PBS's: /usr/bin/qsub, Slurm's wrapper around sbatch (a script that calls Slurm)"),
    ],
)  # fmt: skip
def test_whose_qsub_is_found_is_told(monkeypatch: pytest.MonkeyPatch, qsub: Qsub, found: str) -> None:
    for module in (scheduler, schedulers.qsub):
        monkeypatch.setattr(module, "detect", lambda: qsub)
    assert PBSScheduler().found() == found
    assert bool(PBSScheduler().problem()) is (qsub.kind is not QsubKind.PBS)


WORKQ = PBSQueue("workq", True, True, False, 86400, 8, None, None, 64 * 2**30)
SITE = make_cluster("pbs", name="site")


@pytest.mark.parametrize(
    ("cluster", "queues", "level", "words"),
    [
        (
            SITE,
            [WORKQ],
            [OK, OK],
            "workq (default, this profile's): a job gets at most 8 nodes, 64G memory; up to 24:00",
        ),
        (replace(SITE, queue="workq@srv"), [WORKQ], [OK, OK], "this profile's"),
        (replace(SITE, queue="work"), [WORKQ], [OK, PROBLEM], "Did you mean workq"),
        (SITE, [replace(WORKQ, accepts=False)], [OK, PROBLEM], "takes no jobs now"),
        (
            SITE,
            [replace(WORKQ, started=False)],
            [OK, WARNING],
            "workq (default, this profile's, stopped: its jobs wait)",
        ),
        (
            SITE,
            [replace(WORKQ, only=("users", "hosts"))],
            [OK, OK],
            "workq (default, this profile's, for some users and hosts only)",
        ),
        (
            replace(SITE, limits=Limits(nodes=9)),
            [WORKQ],
            [OK, WARNING],
            "limits.nodes=9 is more than queue workq gives",
        ),
        (SITE, [replace(WORKQ, default=False)], [OK, OK], "no default"),
    ],
)
def test_queues_are_listed_and_the_profile_is_compared(
    cluster: Cluster, queues: list[PBSQueue], level: list[Level], words: str
) -> None:
    found = list(limits.compared(cluster, queues))
    lines = limits.lines(queues, limits.wanted(cluster, queues))
    assert ([OK] * len(lines) + [each.level for each in found]) == level
    assert any(words in each for each in [*lines, *(each.says for each in found)])


def test_history_is_told_and_never_a_problem() -> None:
    assert [limits.history(value).level for value in ("True", "False")] == [OK, OK]
    assert "remembers" in limits.history("True").says
    assert "forgets" in limits.history("False").says
