"""What the checks of all schedulers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.schedulers import registry, site
from launcher.schedulers.base import QueryError
from launcher.schedulers.site import Level, TimedOutput
from tests.unit.plans import bare_plan

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        (TimedOutput("x", 0.1), OK),
        (TimedOutput("x", 20.0), WARNING),
        (TimedOutput(error="squeue did not answer within 8 s"), PROBLEM),
    ],
)
def test_a_scheduler_that_does_not_answer_is_a_problem(answer: TimedOutput, level: Level) -> None:
    (found,) = site.reachable("Slurm", "22.05.8", answer, "SLURM_CONF")
    assert (found.level, "SLURM_CONF wrong" in found.do) == (level, level is PROBLEM)


def test_a_question_that_fails_is_an_answer_with_the_reason() -> None:
    def fails() -> str:
        raise QueryError("squeue is not on this machine's PATH")

    assert site.timed(fails).error == "squeue is not on this machine's PATH"
    assert site.timed(lambda: "x").text == "x"


@pytest.mark.parametrize(("name", "pools"), [("slurm", "partitions"), ("pbs", "queues"), ("sge", "queues")])
def test_a_scheduler_that_does_not_answer_refuses_no_plan_and_has_no_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, pools: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    queue = registry.queue(name)
    (note,) = queue.compare(bare_plan(cluster={"scheduler": name}), {})
    assert note.startswith(f"not compared with the live {pools}: ")
    assert queue.history("7", 1.0) == []
