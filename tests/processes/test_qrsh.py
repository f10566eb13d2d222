"""The tasks of a node that qrsh starts, as processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.schedulers.sge import qrsh
from launcher.schedulers.sge.qrsh import NodeTasks
from tests.launch import until


@pytest.mark.parametrize("readable", [True, False])
def test_a_start_is_only_missed_where_its_file_could_be_read(
    readable: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "0.started"
    tasks = NodeTasks("node2", ["sh", "-c", "exit 3"], b"\n", started)
    if not readable:
        started.unlink()
    until(lambda: tasks.poll() == 3, "the process has ended")
    tasks.kill()
    assert ("qrsh -inherit ended with exit code 3" in capsys.readouterr().err) is readable


def test_a_qrsh_that_does_not_notice_that_its_node_is_gone_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "0.started"
    tasks = NodeTasks("node2", ["sleep", "600"], b"\n", started)
    started.write_text("started\n")
    tasks.kill()
    assert tasks.poll() is None, "the program on the node ends its tasks, and then itself"
    monkeypatch.setattr(qrsh, "UNREACHABLE", 0.0)
    tasks.kill()
    until(lambda: tasks.poll() == -9, "the end of it")
