"""Some kills of pilots, slot managers, points and submitters; `make chaos` has hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import pilots

pytestmark = [pytest.mark.backend("local", "this machine"), pytest.mark.timeout(900)]


@pytest.mark.ci
def test_each_point_is_done_once_or_has_failed_with_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = pilots.report(pilots.on_this_machine(tmp_path / "runs", seed=1), 12)
    assert code == 0, capsys.readouterr().out


@pytest.mark.ci
def test_so_it_is_on_file_systems_that_show_new_files_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = pilots.report(pilots.on_this_machine(tmp_path / "runs", seed=2, late=2.0), 10)
    assert code == 0, capsys.readouterr().out
