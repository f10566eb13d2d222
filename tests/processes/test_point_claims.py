"""Many processes claim points at once, and some of them are killed."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from launcher.processes import Process
from launcher.runs.point_claims import Claims, State
from tests import warm_python
from tests.launch import ROOT

POINTS, PROCESSES, KILLS = 150, 6, 30


@pytest.mark.ci
def test_each_point_is_done_exactly_once_however_often_managers_are_killed(tmp_path: Path) -> None:
    """And none is run by two at the same time: of a point that runs the process is alive."""
    Claims.create(tmp_path)
    log, chance = tmp_path / "log", random.Random(7)
    started = 0
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        nonlocal started
        arguments = [str(tmp_path), str(started), str(POINTS), str(log)]
        running.append(
            subprocess.Popen([warm_python.python(), "-m", "tests.processes.claim_points", *arguments], cwd=ROOT)
        )
        started += 1

    for _ in range(PROCESSES):
        start()
    kills = 0
    try:
        while any(process.poll() is None for process in running):
            time.sleep(chance.uniform(0.02, 0.15))
            live = [process for process in running if process.poll() is None]
            if kills < KILLS and live and log.exists():
                victim = chance.choice(live)
                victim.kill()
                victim.wait()
                running.remove(victim)
                kills += 1
                start()
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * len(running)
    logs = Claims(tmp_path, 0).logs()
    assert {point: log.state for point, log in logs.items()} == dict.fromkeys(range(POINTS), State.DONE)
    ends = [line.split() for line in log.read_text().splitlines()]
    open_: dict[str, str] = {}
    for what, point, pid in ends:
        if what == "begin":  # whoever had begun it before was killed
            assert point not in open_ or not Process.of(int(open_[point])).alive()
            open_[point] = pid
        else:
            assert open_[point] == pid, f"point {point} was run twice at the same time"
    done = {point for what, point, _ in ends if what == "end"}
    assert done == {str(point) for point in range(POINTS)}
