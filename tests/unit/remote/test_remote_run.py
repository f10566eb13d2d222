"""Runs on clusters behind ssh, from Python: what is asked there, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher.errors import (
    BAD_INPUT,
    FAILED,
    RESUME,
    ConfigError,
    LauncherError,
    NoRunError,
    RunError,
    SubmissionError,
    UnavailableError,
)
from launcher.monitoring import run_status
from launcher.monitoring.run_status import RunState
from launcher.remote import ssh
from launcher.remote.clusters import RemoteCluster, Unreachable

CLUSTER = RemoteCluster("hpc1", Path("hpc1.yaml"), "me@hpc1")
RUN = launcher.RemoteRun(CLUSTER, "train-1")


class There:
    """The launcher there: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.output, self.errors, self.code = "", "", 0

    def __call__(
        self, cluster: RemoteCluster, words: Sequence[str], *, show: Callable[[bytes], object],
        errors: Callable[[str], object], **more: Any,
    ) -> int:  # fmt: skip
        self.asked.append([*words])
        if "begun" in more:
            more["begun"](self)
        show(self.output.encode())
        errors(self.errors)
        return self.code


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    found = There()
    monkeypatch.setattr(ssh, "call", found)
    return found


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ('[{"run": "train-1", "state": "running"}]', RunState.RUNNING),
        ('[{"run": "train-1", "state": "of a newer launcher"}]', RunState.UNKNOWN),
        ('{"sweep": "train-1", "points": []}', NoRunError),
        ("no JSON", Unreachable),
    ],
)
def test_the_state_is_that_of_the_other_side(there: There, output: str, state: RunState | type[LauncherError]) -> None:
    there.output = output
    if isinstance(state, RunState):
        assert RUN.state() is state
        return
    with pytest.raises(state):
        RUN.state()


@pytest.mark.parametrize(
    ("action", "code", "error"),
    [
        (RUN.cancel, BAD_INPUT, NoRunError),
        (RUN.metrics, FAILED, RunError),
        (RUN.resume, BAD_INPUT, ConfigError),
        (RUN.resume, FAILED, SubmissionError),
        (RUN.state, RESUME, UnavailableError),
        (RUN.resume, RESUME, UnavailableError),
    ],
)
def test_errors_are_of_the_types_that_a_run_here_has(
    there: There, action: Callable[[], object], code: int, error: type[LauncherError]
) -> None:
    there.code, there.errors = code, "launcher: there is no run 'train-1'\n"
    with pytest.raises(error, match=r"^there is no run 'train-1'$") as raised:
        action()
    assert type(raised.value) is error


def test_a_run_that_cannot_be_read_for_a_while_is_waited_for(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    def comes_back(_: float) -> None:
        there.code, there.output = 0, '[{"run": "train-1", "state": "done"}]'

    there.code, there.errors = RESUME, "launcher: /runs/train-1/record.json cannot be read now: ...\n"
    monkeypatch.setattr(run_status.time, "sleep", comes_back)
    assert RUN.wait() is RunState.DONE


def test_lines_end_where_those_of_a_run_here_do(there: There) -> None:
    assert list(RUN.logs()) == []
    there.output = "[0] 10%\r20%\n[0] a\x0cb\n\n"
    assert list(RUN.logs()) == ["[0] 10%\r20%", "[0] a\x0cb", ""]


def test_a_submission_asks_for_no_confirmation_and_is_no_dry_run(
    there: There, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/hpc1.yaml").write_text("ssh: me@hpc1\n")
    RUN.resume(nodes=4)
    assert there.asked.pop() == ["resume", "train-1", "nodes=4", "wait=false", "--yes"]
    run = launcher.submit(cluster="hpc1", workload="p2p", run_id="mine")
    assert isinstance(run, launcher.RemoteRun) and run.id == "mine"
    assert "--yes" in there.asked.pop()
    for wrong in ({"dry_run": True}, {"submit": False}):
        with pytest.raises(ConfigError, match="leave the key out"):
            launcher.submit(wrong, cluster="hpc1", workload="p2p")
    with pytest.raises(ConfigError, match="cluster=hpc1 is behind ssh"):
        launcher.prepare(cluster="hpc1", workload="p2p")
    assert not there.asked
