"""Time from kill -9 of one of four ranks to the next completed all_reduce, against torchrun.

    python -m benchmarks.restart

Ranks of one run of the launcher are killed one after the other, and rank 0 writes the time of each completed
all_reduce. torchrun runs with `--max-restarts` a few times, and one of its ranks is killed each time. It has a timeout,
since it does not always restart.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Result, environment, report
from launcher.runs.lookup import all_runs

RANKS = 4
SHAPES = {"1 node": ("procs_per_node=4",), "2 nodes": ("nodes=2", "procs_per_node=2")}
PATIENCE = 20.0  # timeout of a restart, in seconds
TORCHRUN_PATIENCE = 40.0  # timeout of a restart by torchrun, in seconds
SAVE_EVERY = 5  # steps between two checkpoints


def results(kills: int = 100, trials: int = 3) -> list[Result]:
    found = []
    ours: list[float] = []
    for name, shape in SHAPES.items():
        seconds, lost = launcher(shape, kills // len(SHAPES))
        ours += seconds
        done = [each for each in seconds if each < PATIENCE]
        typical = f"median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s"
        detail = f"{len(done)} of {len(seconds)} restarts; {typical}"
        found.append(Result(f"kill -9 to next all_reduce, {name}, p95", percentile(seconds, 95), 0.5, detail, unit="s"))
        found.append(
            Result(f"steps lost, saved every {SAVE_EVERY}, {name}", max(lost), SAVE_EVERY, detail, unit="steps")
        )
    theirs = [torchrun() for _ in range(trials)]
    came = [each for each in theirs if each is not None]
    words = f"torchrun came back {len(came)} of {trials} times within {TORCHRUN_PATIENCE:g} s"
    shown = f"; its median {statistics.median(came):.2f} s" if came else ""
    ratio = statistics.median(ours) / statistics.median(
        [TORCHRUN_PATIENCE if each is None else each for each in theirs]
    )
    found.append(Result("restart / torchrun", ratio, 0.5, words + shown))
    failed = sum(each >= PATIENCE for each in ours)
    found.append(Result("restarts that failed", failed, 0, f"of {len(ours)}", unit="failed"))
    return found


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns the smallest of the values that at least `percent` percent of them do not exceed. Pure."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def launcher(shape: Sequence[str], kills: int) -> tuple[list[float], list[int]]:
    """Kills ranks of a run of the launcher.

    Args:
        shape: overrides for the numbers of nodes and ranks.
        kills: number of kills.

    Returns:
        For each kill, the seconds to the next all_reduce (PATIENCE: there was none), and the number of repeated steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = environment(
            LAUNCHER_RUNS_DIR=folder, OMP_NUM_THREADS="1", COUNTING_STEPS="1000000", COUNTING_STEP_TIME="0.005",
            COUNTING_SAVE_EVERY=str(SAVE_EVERY),
        )  # fmt: skip
        entry = ("workload=collective", "workload.entry=tests.chaos.counting:main", "launch.max_restarts=3")
        command = [sys.executable, "-m", "launcher", *entry, *shape, "wait=true"]
        with _running(command, env):
            _until(lambda: all_runs(Path(folder)), 60)
            chaos = all_runs(Path(folder))[0].path / "chaos"
            return _kills(chaos, kills)


def _is_after(chaos: Path, round: int) -> bool:
    return int(_now(chaos).get("round", 0)) > round


def _kills(chaos: Path, kills: int) -> tuple[list[float], list[int]]:
    chance = random.Random(0)  # noqa: S311
    seconds, lost = list[float](), list[int]()
    _until(lambda: _now(chaos).get("step", 0) >= 5, 60)
    for number in range(kills):
        time.sleep(chance.uniform(0.2, 0.4))
        before = _now(chaos)
        rank = json.loads((chaos / f"rank-{chance.randrange(RANKS)}").read_text())
        killed = time.time()
        os.kill(rank["pid"], signal.SIGKILL)
        if not _until(partial(_is_after, chaos, before["round"]), PATIENCE):
            return [*seconds, *[PATIENCE] * (kills - number)], [*lost, 0]
        # `now` may have a later step already, so the first step of the round is in a file of its own.
        first = json.loads((chaos / f"first-{before['round'] + 1}").read_text())
        seconds.append(first["time"] - killed)
        lost.append(max(before["step"] - first["step"] + 1, 0))
    return seconds, lost


def torchrun() -> float | None:
    """Kills a rank of torchrun; returns the seconds to the next all_reduce; None: there was none in time."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(OMP_NUM_THREADS="1", RESTART_FOLDER=folder, TMPDIR=folder)  # torchrun leaves a folder of logs
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
            "--max-restarts=3", str(ROOT / "benchmarks" / "restart_torchrun.py"),
        ]  # fmt: skip
        with _running(command, env) as process:
            now = Path(folder, "now")
            if not _until(lambda: _now(Path(folder)).get("step", 0) >= 5, 60):
                return None
            first = json.loads(now.read_text())["round"]
            killed = time.time()
            os.kill(int(Path(folder, "pid-1").read_text()), signal.SIGKILL)

            def came() -> bool:
                return bool(_now(Path(folder)).get("round", first) != first)

            _until(lambda: came() or process.poll() is not None, TORCHRUN_PATIENCE)  # or has given up
            if not came():
                return None
            return (
                float(json.loads(next(Path(folder).glob(f"first-{_now(Path(folder))['round']}")).read_text())["time"])
                - killed
            )


def _now(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "now").read_text()))
    except FileNotFoundError:
        return {}


def _until(condition: Callable[[], object], patience: float) -> bool:
    give_up = time.monotonic() + patience
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def _running(command: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command in the background; at the end of the block, stops it and all its processes."""
    process = subprocess.Popen(
        command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(15)
        process.wait()


if __name__ == "__main__":
    sys.exit(report(results()))
