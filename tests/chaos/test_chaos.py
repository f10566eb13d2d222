"""A few random faults against a run; `make chaos` injects many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harness import Chaos, report
from tests.launch import Launcher


@pytest.mark.ci
@pytest.mark.backend("local", "this machine")
def test_a_run_survives_a_short_storm_with_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = Launcher(tmp_path / "runs", {}, ["cluster=local"])
    code = report(Chaos(launcher, seed=3), faults=2, epochs=20, folder=tmp_path)
    assert code == 0, capsys.readouterr().out
