"""The job that goes on with a run: what the scheduler is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import SubmissionError
from launcher.runs.directory import Run
from launcher.schedulers import registry
from launcher.schedulers.executor import RunExecutor
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.run_command import SubmissionRefused, submit_behind
from launcher.submission import render
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
    monkeypatch.setattr(PBS, "holds", lambda *_: True)
    plan = bare_plan(cluster={"scheduler": "pbs"})
    assert submit_behind(plan, [job], "script.sh", "token-1", {}, 1.0) == "8.server"
    assert asked == ["-f", "-v", "LAUNCHER_TOKEN=token-1", *waits]


def test_a_job_that_goes_on_has_the_variables_of_its_script(tmp_path: Path) -> None:
    """Those of the command line replace them."""
    plan = bare_plan(cluster={"scheduler": "pbs", "directives": {"v": ["USE_SSH=1", "A=$B"]}})
    script = tmp_path / "script.sh"
    script.write_text(render.script(plan, token="launcher-1"))
    command = PBS().request(str(script), {}, *PBS().options(["7.server"], "launcher-1-2")).command
    assert command[command.index("-v") + 1] == "LAUNCHER_TOKEN=launcher-1-2,USE_SSH=1,A=$B"
    assert "-v" not in PBS().request(str(script), {}, *PBS().options(["7.server"])).command


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "9"}, "9"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, "9_3"),
        ({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "0"}, "9_0"),
    ],
)
def test_no_element_of_an_array_waits_for_all_elements(variables: dict[str, str], job: str) -> None:
    """Slurm gives one element of each array the array's id as SLURM_JOB_ID."""
    assert registry.queue("slurm").own_job(variables) == job


def test_a_job_that_pbs_has_deleted_at_once_was_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does that if one of the jobs that the new one waits for has ended meanwhile, and prints an id nonetheless."""
    monkeypatch.setattr(PBS, "submit", lambda *_: "8.server")
    monkeypatch.setattr(PBS, "holds", lambda *_: False)
    with pytest.raises(SubmissionRefused, match=r"it has deleted job 8\.server"):
        submit_behind(bare_plan(cluster={"scheduler": "pbs"}), ["7.server"], "script.sh", "token-1", {}, 1.0)


@pytest.mark.parametrize(
    ("unfinished", "kept", "job"),
    [
        ([["7", "6"]], ["1"], "1"),
        ([["7", "6"], ["6"]], ["2"], "2"),  # 7 has ended, and 6 not
        ([["7"], []], [], "2"),  # nothing is left to wait for
        ([["7", "6"], ["7", "6"]], [], "1"),  # nothing has ended, so it was deleted for another reason
        ([[str(each)] for each in range(9)], [], None),
    ],
)
def test_a_run_that_waits_for_several_jobs_is_submitted_until_pbs_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfinished: list[list[str]], kept: list[str], job: str | None
) -> None:
    first, *rest = unfinished
    left, jobs = iter(rest), iter("123456789")
    executor = RunExecutor(
        Run.create(tmp_path / "run"), bare_plan(cluster={"scheduler": "pbs"}), "token-1", None, scripts=render,
        blocking_jobs=lambda: next(left),
    )  # fmt: skip
    monkeypatch.setattr(PBS, "submit", lambda *_: next(jobs))
    monkeypatch.setattr(PBS, "holds", lambda _, each: each in kept)
    if job is None:
        with pytest.raises(SubmissionError, match="repeat the command"):
            executor._submit_behind(tmp_path / "script.sh", {}, first)
        return
    assert executor._submit_behind(tmp_path / "script.sh", {}, first) == job
