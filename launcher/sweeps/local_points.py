"""Runs points of a sweep on this machine, a few at a time: `python -m launcher.sweeps.local_points SWEEP`.

Whoever wants points run appends a line to the sweep's file `points` (`Sweep.ask`) and starts this process, which goes
on without it. Of several such processes one works. It keeps nothing in mind that is not on disk: killed at any moment,
it can be started again, and finds the points that run already.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launcher.errors import DONE, FAILED, LauncherError, UnavailableError
from launcher.files import locks
from launcher.files.shared_files import LONGEST
from launcher.runs.directory import token_of
from launcher.runs.events import ProcessStarted, Submitted, last
from launcher.runs.journal import journal_events, process_of
from launcher.runs.sweep_directory import Sweep
from launcher.submission.submit import start

LOCK = ".points"  # the file that the one at work has locked
LOOK = 0.1  # seconds between two looks
PATIENCE = 3600.0  # seconds for which a sweep that cannot be read is waited for


def main(path: str) -> int:
    """Runs what waits; what cannot be read now is waited for, since nobody else would start these points."""
    sweep, failed, since = Sweep(Path(path)), set[int](), time.monotonic()
    while True:
        try:
            return _run(sweep, failed)
        except UnavailableError as error:
            print(f"launcher: {error}", file=sys.stderr, flush=True)
            if time.monotonic() - since > PATIENCE:
                return FAILED
            time.sleep(LONGEST)


def _run(sweep: Sweep, failed: set[int]) -> int:
    while set(_look(sweep)[0]) - failed:
        with locks.try_acquire(sweep.path / LOCK) as ours:
            if not ours:
                return DONE  # another one is at work, and will see what is new
            _work(sweep, failed)
    return DONE


def _work(sweep: Sweep, failed: set[int]) -> None:
    """Starts points until none waits but those that have failed to start."""
    while True:
        began = time.monotonic()
        found, running = _look(sweep)
        took = time.monotonic() - began
        waiting = [index for index in found if index not in failed]
        if not waiting:
            return
        room = (sweep.manifest().parallelism or 1) - running
        for index in waiting[: max(room, 0)]:
            try:
                _start(sweep, index)
            except UnavailableError:
                raise  # it is started when it can be read
            except (LauncherError, OSError) as error:
                failed.add(index)
                print(f"point {index}: {error}", file=sys.stderr, flush=True)
        time.sleep(max(LOOK, 4 * took))  # many points take long to look at


def _start(sweep: Sweep, index: int) -> None:
    run = sweep.run(index)
    plan = run.plan()
    job = start(run, plan, token_of(plan.run_dir), resumed=False)
    run.journal(Submitted(job=job.job_id))


def _look(sweep: Sweep) -> tuple[list[int], int]:
    """Points that have not been started since they were asked for, and how many of all that were asked for run."""
    waiting, running, cancelled = [], 0, sweep.cancelled()
    for index, since in sweep.local_requests().items():
        run = sweep.run(index)
        process, started = process_of(run), last(journal_events(run), ProcessStarted)
        running += process is not None and process.alive()
        begun = started is not None and started.time >= since
        if not (begun or cancelled or run.has("cancelled")):
            waiting.append(index)
    return waiting, running


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
