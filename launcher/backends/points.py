"""Runs points of a sweep on this machine, a few at a time: `python -m launcher.backends.points SWEEP`.

Whoever wants points run appends a line to the sweep's file `points` (`Sweep.ask`) and starts this process, which goes
on without it. Of several such processes one works. It keeps nothing in mind that is not on disk: killed at any moment,
it can be started again, and finds the points that run already.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.backends.processes import Process
from launcher.errors import LauncherError
from launcher.sweeps import Sweep

LOOK = 0.1  # seconds between two looks


def main(path: str) -> int:
    sweep, failed = Sweep(Path(path)), set[int]()
    while set(_waiting(sweep)) - failed:
        with open(os.open(sweep.path / ".points", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return 0  # another one is at work, and will see what is new
            _work(sweep, failed)
    return 0


def _work(sweep: Sweep, failed: set[int]) -> None:
    """Starts points until none waits but those that have failed to start."""
    while waiting := [index for index in _waiting(sweep) if index not in failed]:
        running = sum(process is not None and process.alive() for _, process in _started(sweep))
        room = (sweep.manifest().parallelism or 1) - running
        for index in waiting[: max(room, 0)]:
            try:
                _start(sweep, index)
            except (LauncherError, OSError) as error:
                failed.add(index)
                print(f"point {index}: {error}", file=sys.stderr, flush=True)
        time.sleep(LOOK)


def _start(sweep: Sweep, index: int) -> None:
    from launcher.submit import start, token_of

    run = sweep.run(index)
    plan = run.plan()
    job = start(run, plan, token_of(plan.run_dir), resumed=False)
    run.journal("submitted", job=job.job_id)


def _waiting(sweep: Sweep) -> Iterator[int]:
    """Points that have not been started since they were asked for."""
    if sweep.cancelled():
        return
    for index, since in sweep.asked().items():
        run = sweep.run(index)
        if (run.path / "cancelled").exists():
            continue
        events = run.journal_events()
        if not any(event["event"] == "process" and event["time"] >= since for event in events):
            yield index


def _started(sweep: Sweep) -> Iterator[tuple[int, Process | None]]:
    """All points that were asked for, and the last process of each."""
    for index in sweep.asked():
        yield index, Process.started(sweep.run(index).journal_events())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
