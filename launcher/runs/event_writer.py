"""Writes the events of an agent or a rank to the run directory; a failed write never fails the attempt."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import errors
from launcher.failures import text
from launcher.failures.codes import FaultCode
from launcher.files.shared_files import is_transient
from launcher.formatting import log_line
from launcher.runs import directory, event_file
from launcher.runs.events import Event, Fault
from launcher.structs import replace

if TYPE_CHECKING:
    from launcher.plan.plan import JobPlan

UNWRITTEN = 1000  # newest events that are kept in memory until they can be written


def current_attempt() -> directory.Attempt | None:
    """Returns the attempt that this process belongs to, from its environment variables; None: it is in no run."""
    run_dir, number = os.environ.get("LAUNCHER_RUN_DIR"), os.environ.get("LAUNCHER_ATTEMPT")
    return directory.Attempt(directory.Run(Path(run_dir)), int(number)) if run_dir and number else None


class Events:
    """Writes the events of one writer of an attempt; attempt=None: drops them.

    An event that cannot be written (full disk, no file descriptor left) is written together with the next one. One that
    exceeds a bound is left out, and named in the log.
    """

    def __init__(self, attempt: directory.Attempt | None, writer: str) -> None:
        self._path = attempt.events_file(writer) if attempt else None
        self._unwritten: deque[Event] = deque(maxlen=UNWRITTEN)
        self._failing = False
        self._refused: set[str] = set()  # kinds of events that were left out

    def __call__(self, event: Event) -> bool:
        """Writes an event, at the present time if it has none; False: it exceeds a bound and never will be."""
        if self._path is None:
            return True
        self._unwritten.append(replace(event, time=event.time or time.time()))
        fits = True
        try:
            while self._unwritten:
                fits = self._append(self._path, self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            if not self._failing:
                log_line(f"cannot write to {self._path} now: {error}", sys.stdout)
            self._failing = True
        else:
            self._failing = False
        return fits

    def _append(self, path: Path, event: Event) -> bool:
        try:
            event_file.append(path, event)
        except ValueError as error:
            if event.event not in self._refused:
                log_line(f"an event {event.event} is not written to {path}: {error}", sys.stdout)
            self._refused.add(event.event)
            return False
        return True


def report_start_failure(
    plan: JobPlan | None, writer: str, error: Exception, what: FaultCode = FaultCode.UNREADABLE
) -> int:
    """Reports on stderr and as event `fault` why this agent cannot start (plan=None: it is unreadable); the exit code.

    Returns RESUME if `error` is transient, so that a retry may help, else NO_RETRY. `writer` gets host and process id
    added.
    """
    code = errors.RESUME if is_transient(error) else errors.NO_RETRY
    host = socket.gethostname()
    fault = Fault(code=what, host=host, error=str(error), ends_with=code)
    print(f"launcher: {text.of_fault(fault)}", file=sys.stderr, flush=True)
    if attempt := current_attempt():
        Events(attempt, f"{writer}-{host}-{os.getpid()}")(fault)
        # If all nodes are needed, the other agents are killed while they wait; otherwise they write the code later.
        if plan is None or plan.min_nodes == plan.nodes:
            attempt.write_exit_code(code)
    return code
