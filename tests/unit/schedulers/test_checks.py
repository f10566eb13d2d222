"""What the checks of all schedulers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.schedulers import registry, site
from launcher.schedulers.base import QueryError
from launcher.schedulers.site import Finding, Level
from tests.unit.plans import bare_plan

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


def fails() -> str:
    raise QueryError("squeue did not answer within 8 s")


@pytest.mark.parametrize(("ask", "slow", "level"), [(str, 5.0, OK), (str, -1.0, WARNING), (fails, 5.0, PROBLEM)])
def test_a_scheduler_that_does_not_answer_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], str], slow: float, level: Level
) -> None:
    monkeypatch.setattr(site, "SLOW", slow)

    def check() -> Iterator[Finding]:
        answer = yield from site.reachable("Slurm", "22.05.8", ask, "SLURM_CONF")
        assert (answer is None) is (level is PROBLEM)

    assert [(each.level, "SLURM_CONF wrong" in each.do) for each in check()] == [(level, level is PROBLEM)]


@pytest.mark.parametrize(("name", "pools"), [("slurm", "partitions"), ("pbs", "queues"), ("sge", "queues")])
def test_a_scheduler_that_does_not_answer_refuses_no_plan_and_has_no_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, pools: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    queue = registry.queue(name)
    (note,) = queue.compare(bare_plan(cluster={"scheduler": name}), {})
    assert note.startswith(f"not compared with the live {pools}: ")
    assert queue.history("7", 1.0) == []
