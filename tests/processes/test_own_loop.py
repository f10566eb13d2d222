"""The loop of one's own in docs/training-and-resuming.md, stopped and resumed, ends bitwise as if it had not been."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import Env
from launcher.worker import process_group
from tests.launch import ROOT
from tests.processes.workload_ranks import RankResult, run_ranks

STEPS = 60


def attempt(case: dict[str, Any], env: Env) -> dict[str, Any]:
    """Runs the example in this rank; `stop` is the step at which rank 0 is told to stop."""
    step_of = process_group.report_step

    def report_step(step: int) -> None:
        step_of(step)
        if step == case.get("stop"):
            os.kill(os.getpid(), signal.SIGTERM)

    process_group.report_step = report_step  # type: ignore[assignment]
    sys.argv = ["own_loop.py", "--steps", str(STEPS), "--folder", case["folder"]]
    try:
        runpy.run_path(str(ROOT / "tests/examples/own_loop.py"), run_name="__main__")
    except SystemExit as leave:
        return {"code": leave.code}
    return {"code": 0}


def ends(results: list[RankResult]) -> str:
    (line,) = (line for line in results[0].printed.splitlines() if line.startswith("ends with"))
    return line


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loop_of_ones_own_is_stopped_and_resumed_bitwise(tmp_path: Path, world_size: int) -> None:
    undisturbed = run_ranks(attempt, {"folder": str(tmp_path / "one")}, world_size)
    for stop in (7, 31):
        results = run_ranks(attempt, {"folder": str(tmp_path / "two"), "stop": stop}, world_size)
        assert [result.metrics["code"] for result in results] == [75] * world_size
    assert f"'samples': {16 * STEPS}" in ends(undisturbed)
    assert ends(run_ranks(attempt, {"folder": str(tmp_path / "two")}, world_size)) == ends(undisturbed)


def test_what_each_rank_has_for_itself_is_refused_by_name_at_another_number_of_ranks(tmp_path: Path) -> None:
    run_ranks(attempt, {"folder": str(tmp_path / "it"), "stop": 7}, 2)
    (result,) = run_ranks(attempt, {"folder": str(tmp_path / "it")}, 1, fails=True)
    assert "loader of each rank cannot be restored, since 2 ranks saved it, and there are 1 now" in result.error
