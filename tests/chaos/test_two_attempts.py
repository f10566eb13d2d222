"""An attempt that was cut off while another one took over the run, and comes back: it publishes and removes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.runs.directory import Run
from tests.chaos import file_server, harness
from tests.chaos.blows import Target, missing
from tests.launch import PYTHON, ROOT, Launcher, until

EPOCHS = 150
# Where rank 0 is in a save when its node is cut off: the call, and a part of its path.
MOMENTS = {
    "it begins": ("os.mkdir", "/checkpoints/.saving-"),
    "it is about to be published": ("os.rename", "/checkpoints/.saving-"),
    "an old one is about to go": ("os.rename", "/checkpoints/step-"),
}


def of_session(session: int) -> list[int]:
    """Returns the pids of the live processes of a session, that is, of a job on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(values[3]) == session and values[0] != "Z":
            found.append(int(path.parent.name))
    return found


def signal_all(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


@pytest.mark.slow
@pytest.mark.backend("local", "this machine")
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_attempt_that_has_lost_the_run_publishes_and_removes_nothing(tmp_path: Path, moment: str) -> None:
    environment = {"PYTHONPATH": f"{ROOT / 'tests/chaos/hook'}:{ROOT}"}
    launcher = Launcher(tmp_path / "runs", environment, ["cluster=local"])
    target = Target(launcher, "cut-off", seed=0)
    words = (
        *harness.TRAINING, f"workload.epochs={EPOCHS}", "workload.entry=tests.chaos.slowly:main", "run_id=cut-off",
        "checkpoint.every_steps=20", "nodes=1", "procs_per_node=2", "wait=false",
    )  # fmt: skip
    subprocess.run(
        [PYTHON, "-m", "tests.chaos.short_lease", *words, *launcher.overrides],
        cwd=ROOT,
        env=launcher.environ,
        check=True,
    )
    processes: list[int] = []
    first = next(event["pid"] for event in target.journal() if event["event"] == "process")
    try:
        until(lambda: len(target.sound()) == 2, "two checkpoints", 120, launcher.printed)
        call, part = MOMENTS[moment]
        file_server.weaken(target.path, file_server.HANGS, 600, rank=0, call=call, parts=[part])
        until(lambda: file_server.met(target.path), f"a save at which {moment}", 60, launcher.printed)
        processes = of_session(first)
        signal_all(processes, signal.SIGSTOP)
        file_server.recover(target.path)
        before = target.sound()
        second = started_again(target)
        until(lambda: [m.attempt for m in target.sound().values()] == [1, 1], "its own", 180, launcher.printed)
        theirs = target.sound()
        signal_all(processes, signal.SIGCONT)
        until(lambda: not of_session(first), "the end of the one that has lost the run", 120, launcher.printed)
        assert missing(theirs, target.sound(), set()) == []
        assert {manifest.attempt for path, manifest in target.sound().items() if path not in before} == {1}
        assert second.poll() is None, launcher.printed()
        (target.path / "chaos/fast").touch()
        assert second.wait(180) == 0, launcher.printed()
    finally:
        signal_all([*processes, *of_session(first)], signal.SIGKILL)
    assert [attempt.number for attempt in Run(target.path).attempts()] == [0, 1]
    assert harness.weights(target.path) == harness.undisturbed(tmp_path, EPOCHS)


def started_again(target: Target) -> subprocess.Popen[Any]:
    """Starts the run's job a second time under another job id, as a scheduler does that has given up the first node."""
    environment = {**target.launcher.environ, "LAUNCHER_JOB_ID": "local-second"}
    with open(target.path / "output-local-second.log", "w") as log:
        return subprocess.Popen(
            ["bash", str(target.path / "script.sh")], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=environment, start_new_session=True,
        )  # fmt: skip
