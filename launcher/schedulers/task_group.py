"""Tasks of one command that end together: the request to a task starter, and the wait for the started tasks."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher import errors
from launcher.files.shared_files import Ok, exists
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import StopRequested
from launcher.schedulers import hostlist

STRAGGLERS = 60.0  # seconds after the end of the run in which tasks end by themselves


class Task(Protocol):
    """A task: a process on this host, or one that a task starter such as pbsdsh started on another node."""

    def poll(self) -> int | None:
        """Returns the task's exit status, negative if a signal killed it; None while it is running."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class TaskRequest:
    """Tasks for a task starter (registry.STARTERS) to start."""

    folder: Path  # directory of the tasks' files on a file system that all nodes share; the starter creates it
    nodes: int  # number of hosts
    tasks_per_node: int  # number of tasks on each host
    grace: float  # seconds between SIGTERM and SIGKILL
    command: Sequence[str]  # argv of every task
    # received stop signals, from `collect_signals`; a starter adds its scheduler's own signals as SIGTERM
    signals: list[int]
    keep_going: bool = False  # whether the other tasks continue when one fails
    mpiexec: Sequence[str] = ()  # argv of the site's mpiexec (`cluster.mpiexec`), for the starter that uses it


def environments(hosts: Sequence[str], tasks_per_node: int) -> list[dict[str, str]]:
    """Returns each task's LAUNCHER_* variables, from which it derives its rank, node and hosts."""
    tasks = len(hosts) * tasks_per_node
    common = {**hostlist.variable(hosts), "LAUNCHER_TASKS": str(tasks)}
    return [
        {**common, "LAUNCHER_TASK": str(task), "LAUNCHER_NODE": str(task // tasks_per_node)} for task in range(tasks)
    ]


def collect_signals() -> list[int]:
    """Installs handlers of SIGTERM and SIGINT; returns a list to which each received signal number is appended."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    return signals


def watch(
    tasks: Sequence[Task], signals: Sequence[int], grace: float, pause: float, *, keep_going: bool = False,
    lost: Callable[[], Collection[int]] = tuple,
) -> int:  # fmt: skip
    """Waits until all tasks have ended.

    When a stop signal arrives, a task exits with RESUME, or (unless `keep_going`) a task fails in any other way, the
    remaining tasks get SIGTERM and, `grace` seconds later, SIGKILL. STRAGGLERS seconds after the agents have recorded
    the exit code of the attempt they get SIGKILL, and do not count: their nodes may be gone, which some starters never
    notice. Tasks of functions have no agents: they get SIGKILL when all tasks that are left are on lost nodes.

    Args:
        tasks: the started tasks.
        signals: the list of `collect_signals`, which must be called before the tasks start.
        grace: seconds between SIGTERM and SIGKILL.
        pause: seconds between two polls.
        keep_going: whether the other tasks continue when one fails.
        lost: returns the indices of the tasks whose nodes the scheduler reports as lost. It is asked every STRAGGLERS
            seconds while no task ends and some have ended.

    Returns:
        The exit status of the first failed task (128 + N after signal N), else 0.
    """
    kill_at, first_failure, over_at, look_at = None, 0, None, 0.0
    ended, ask_at = 0, 0.0
    while True:
        codes = [task.poll() for task in tasks]
        over = over_at is not None and time.monotonic() > over_at + STRAGGLERS
        if not over:
            first_failure = first_failure or next((code for code in codes if code), 0)
        if None not in codes:
            return first_failure if first_failure >= 0 else 128 - first_failure
        left = [task for task, code in zip(tasks, codes, strict=True) if code is None]
        ending = signals or (first_failure and not keep_going) or errors.RESUME in codes  # another job continues it
        now = time.monotonic()
        if over_at is None and now >= look_at:
            look_at, over_at = now + 1.0, now if attempt_is_over() else None
        if ended != (ended := len(tasks) - len(left)):
            ask_at = now + STRAGGLERS
        elif ended and now >= ask_at:
            ask_at = now + STRAGGLERS
            if {number for number, code in enumerate(codes) if code is None} <= set(lost()):
                for task in left:
                    task.kill()
        if over:
            for task in left:
                task.kill()
        elif kill_at is None and ending:
            kill_at = now + grace
            for task in left:
                task.terminate()
            if signals:
                _record(signal.Signals(signals[0]))
        elif kill_at is not None and now > kill_at:
            for task in left:
                task.kill()
        time.sleep(pause)


def attempt_is_over() -> bool:
    """Returns whether the agents have recorded the attempt's exit code; False as well if that is not known now."""
    attempt = current_attempt()
    return attempt is not None and exists(attempt.path / "exit_code", retry_seconds=0) == Ok(True)


def _record(request: signal.Signals) -> None:
    # Records a stop request in the attempt's events at once, because PBS may kill the job script soon
    Events(current_attempt(), "spawn")(StopRequested(signal=request.name, host=socket.gethostname()))
