"""Runs points of a sweep on this machine, a few at a time: `python -m launcher.sweeps.local_runner SWEEP`.

A command that requests points appends a line to the sweep's file `points` (`Sweep.request_local`) and starts this
process in the background. If several such processes are started, one works and the others exit. All state is on disk:
if the process is killed, the next one finds the points that already run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launcher.errors import DONE, FAILED, LauncherError, UnavailableError
from launcher.files.retried_reads import LONGEST
from launcher.runs.directory import token_of
from launcher.runs.events import ProcessStarted, last
from launcher.runs.history import journal_events, process_of
from launcher.runs.lease_and_locks import try_acquire
from launcher.runs.sweep_directory import Sweep
from launcher.submission.submit import start

LOCK = ".points"  # name of the file that the working process locks
POLL_INTERVAL = 0.1  # minimum seconds between two polls of the requests
READ_TIMEOUT = 3600.0  # seconds for which the sweep cannot be read, after which the process gives up


def main(path: str) -> int:
    """Starts all requested points of a sweep; while it cannot be read, waits up to READ_TIMEOUT: nobody else would."""
    points, failed = _Points(Sweep(Path(path))), dict[int, float]()
    while True:
        try:
            return _run(points, failed)
        except UnavailableError as error:
            print(f"launcher: {error}", file=sys.stderr, flush=True)
            if time.monotonic() - points.read_at > READ_TIMEOUT:
                return FAILED
            time.sleep(LONGEST)


def _run(points: _Points, failed: dict[int, float]) -> int:
    # failed: the requests of points that could not be started, by point
    while points.look()[0].items() - failed.items():
        with try_acquire(points.sweep.path / LOCK) as locked:
            if not locked:
                return DONE  # another process works, and reads new requests too
            _start_points(points, failed)
    return DONE


def _start_points(points: _Points, failed: dict[int, float]) -> None:
    while True:
        began = time.monotonic()
        parallelism = points.sweep.manifest().parallelism or 1
        requested, running = points.look(parallelism + len(failed))
        took = time.monotonic() - began
        waiting = [index for index, since in requested.items() if failed.get(index) != since]
        if not waiting:
            return
        for index in waiting[: max(parallelism - running, 0)]:
            try:
                run = points.sweep.run(index)
                plan = run.plan()
                start(run, plan, token_of(plan.run_dir), resumed=False)
            except UnavailableError:
                raise  # `main` tries it later
            except (LauncherError, OSError) as error:
                failed[index] = requested[index]
                print(f"point {index}: {error}", file=sys.stderr, flush=True)
        points.read_at = time.monotonic()
        time.sleep(max(POLL_INTERVAL, 4 * took))  # with many points a read takes long


class _Points:
    # Points that are over, or that have to wait, are not read at each look

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.read_at = time.monotonic()  # when everything could be read last
        self._known: dict[int, tuple[bool, float]] = {}  # by point: whether it waits, else it is over; its request

    def look(self, most: int | None = None) -> tuple[dict[int, float], int]:
        """Returns points (at most so many) that have not started since their request, with it, and how many run now."""
        waiting: dict[int, float] = {}
        running, cancelled = 0, self.sweep.cancelled()
        for index, since in self.sweep.local_requests().items():
            waits, known = self._known.get(index, (False, None))
            if known == since and not cancelled and (not waits or (most is not None and len(waiting) >= most)):
                waiting |= {index: since} if waits else {}
                continue
            run = self.sweep.run(index)
            process, started = process_of(run), last(journal_events(run), ProcessStarted)
            alive = process is not None and process.alive()
            begun = started is not None and started.time >= since
            waits = not (begun or cancelled or run.has("cancelled"))
            self._known.pop(index, None)
            if waits or (begun and not alive):
                self._known[index] = waits, since
            running += alive
            waiting |= {index: since} if waits else {}
        return waiting, running


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
