"""The job that goes on with a run: what the scheduler is asked for."""

from __future__ import annotations

import pytest

from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.run_command import submit_after
from tests.unit.plans import bare_plan


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        ("7.server", ["-W", "depend=afterany:7.server"]),
        ("7[2].server", []),  # refused by qsub: illegal -W value
        ("7.server_2", []),
    ],
)
def test_a_job_waits_for_another_one_but_for_no_element_of_an_array(
    monkeypatch: pytest.MonkeyPatch, job: str, waits: list[str]
) -> None:
    asked: list[str] = []

    def submit(self: PBS, script: str, environment: dict[str, str], *arguments: str) -> str:
        asked.extend(arguments)
        return "8.server"

    monkeypatch.setattr(PBS, "submit", submit)
    plan = bare_plan(cluster={"scheduler": "pbs"})
    assert submit_after(plan, job, "script.sh", "token-1", {}, 1.0) == "8.server"
    assert asked == ["-f", "-v", "LAUNCHER_TOKEN=token-1", *waits]
