"""What the checks of all schedulers share."""

from __future__ import annotations

import pytest

from launcher.schedulers import site
from launcher.schedulers.base import QueryError
from launcher.schedulers.site import Level, TimedOutput

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
