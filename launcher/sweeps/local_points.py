"""Runs points of a sweep on this machine, a few at a time: `python -m launcher.sweeps.local_points SWEEP`.

A command that requests points appends a line to the sweep's file `points` (`Sweep.request_local`) and starts this
process in the background. If several such processes are started, one works and the others exit. All state is on disk:
if the process is killed, the next one finds the points that already run.
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

LOCK = ".points"  # name of the file that the working process locks
POLL_INTERVAL = 0.1  # minimum seconds between two polls of the requests
READ_TIMEOUT = 3600.0  # seconds after which the process gives up if the sweep cannot be read


def main(path: str) -> int:
    """Starts all requested points of the sweep with this directory, and returns the exit code of the process.

    While the sweep cannot be read, waits up to READ_TIMEOUT seconds, because no other process would start the points.
    """
    sweep, failed, since = Sweep(Path(path)), set[int](), time.monotonic()
    while True:
        try:
            return _run(sweep, failed)
        except UnavailableError as error:
            print(f"launcher: {error}", file=sys.stderr, flush=True)
            if time.monotonic() - since > READ_TIMEOUT:
                return FAILED
            time.sleep(LONGEST)


def _run(sweep: Sweep, failed: set[int]) -> int:
    while set(_waiting_and_running(sweep)[0]) - failed:
        with locks.try_acquire(sweep.path / LOCK) as locked:
            if not locked:
                return DONE  # another process works, and reads new requests too
            _start_points(sweep, failed)
    return DONE


def _start_points(sweep: Sweep, failed: set[int]) -> None:
    """Starts requested points, as many at once as sweep.parallelism allows (default 1), until none is waiting.

    Args:
        sweep: the sweep.
        failed: numbers of the points that could not be started, which are not tried again; new ones are added.
    """
    while True:
        began = time.monotonic()
        requested, running = _waiting_and_running(sweep)
        took = time.monotonic() - began
        waiting = [index for index in requested if index not in failed]
        if not waiting:
            return
        room = (sweep.manifest().parallelism or 1) - running
        for index in waiting[: max(room, 0)]:
            try:
                _start(sweep, index)
            except UnavailableError:
                raise  # `main` tries it later
            except (LauncherError, OSError) as error:
                failed.add(index)
                print(f"point {index}: {error}", file=sys.stderr, flush=True)
        time.sleep(max(POLL_INTERVAL, 4 * took))  # with many points a read takes long


def _start(sweep: Sweep, index: int) -> None:
    run = sweep.run(index)
    plan = run.plan()
    job = start(run, plan, token_of(plan.run_dir), resumed=False)
    run.journal(Submitted(job=job.job_id))


def _waiting_and_running(sweep: Sweep) -> tuple[list[int], int]:
    """Returns the points that have not started since their last request, and how many requested points run now."""
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
