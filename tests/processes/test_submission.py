"""Who submits is interrupted or killed while sbatch is under way: each job is handed over once all the same."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launch import PYTHON, ROOT, until
from tests.markers import ci
from tests.unit.slurm_stand_in import SlurmStandIn
from tests.unit.sweep_site import Site, seeds, submitted_points


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIn:
    """Its sbatch hangs until the test lets it go on."""
    commands = SlurmStandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", commands.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    commands.set(hold="")
    return commands


ONE, SWEEP = ("run_id=a",), ("-m", "sweep.id=a", "seed=1,2")


@pytest.mark.parametrize(
    ("what", "times", "words", "then"),
    [
        (ONE, 1, "a was submitted as job 100, and goes on: ", "job        100 on slurm"),
        ci(ONE, 2, "nobody knows whether a was submitted: repeat the command", "job        100 on slurm"),
        ci(
            SWEEP,
            1,
            "2 points of a submitted, as 100: repeat the command with sweep.id=a to submit the rest",
            "2 points had been submitted before: 2 queued",
        ),
        (
            SWEEP,
            2,
            "it is not known which points of a were submitted: repeat",
            "2 points had been submitted before: 2 queued",
        ),
    ],
)
def test_ctrl_c_while_sbatch_runs_says_what_is_there(
    what: tuple[str, ...], times: int, words: str, then: str, tmp_path: Path, stand_in: SlurmStandIn
) -> None:
    command = (
        PYTHON, "-m", "launcher", *what, "workload=collective", "cluster=slurm", "cluster.check=false",
        f"runs_dir={tmp_path}/runs",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAUNCHER_CONFIG_DIR": str(tmp_path / "config")}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    process = start()
    assert process.stderr is not None
    until(lambda: stand_in.calls() == 1, "sbatch runs")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to whatever is in its foreground
    line_with(process.stderr.readline, "waiting for the scheduler's answer")
    if times == 1:
        stand_in.set(hold=None)
    else:
        os.killpg(process.pid, signal.SIGINT)
    line_with(process.stderr.readline, words)
    assert process.wait(60) == 130
    stand_in.set(hold=None)
    again = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert then in again.stdout, again.stdout + again.stderr
    assert len(stand_in.jobs()) == 1


def line_with(next_line: Callable[[], str], words: str) -> None:
    """Reads until a line has these words."""
    seen = []
    while line := next_line():
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"no {words!r} in {seen}")


SUBMITTER = """
import sys
from pathlib import Path
from tests.unit.sweep_site import Site, seeds
Site(Path(sys.argv[1]), None).submit(seeds(int(sys.argv[2])))
"""


@pytest.mark.parametrize("points", [3, ci(1)])
def test_an_sbatch_that_outlives_its_submitter_is_waited_for(
    stand_in: SlurmStandIn, tmp_path: Path, points: int, capfd: pytest.CaptureFixture[str]
) -> None:
    site, told = Site(tmp_path, stand_in), []
    command = [PYTHON, "-c", SUBMITTER, str(tmp_path), str(points)]
    with subprocess.Popen(command, start_new_session=True) as submitter:
        until(lambda: stand_in.calls() == 1, "sbatch runs")
        submitter.send_signal(signal.SIGKILL)
    assert stand_in.jobs() == []

    def waits() -> bool:
        told.append(capfd.readouterr().err)
        return "waiting for another command that submits" in "".join(told)

    with ThreadPoolExecutor() as pool:
        next_one = pool.submit(site.submit, seeds(points))
        try:
            until(waits, "the next command waits")
        finally:
            stand_in.set(hold=None)
        done = next_one.result()
    assert done.already_submitted == tuple(range(points)) or done.jobs == (("100", (0,)),)
    assert len(stand_in.jobs()) == 1
    assert (stand_in.calls(), len(submitted_points(site))) == (1, points)
