"""Tasks of one command that end together: the request to a starter, and waiting for the tasks that it started."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher import errors
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import StopRequested


class Task(Protocol):
    """A task: a process of this host, or one that pbsdsh started on another node."""

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None: the task is running."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class TaskRequest:
    """Tasks that a starter is to start.

    Attributes:
        folder: of the files of the tasks, created by the starter, on a file system that all nodes share.
        nodes, tasks_per_node: how many hosts, and tasks on each.
        grace: seconds between SIGTERM and SIGKILL.
        command: what every task runs.
        signals: the received stop signals, from `collect_signals`; a starter adds its scheduler's own as SIGTERM.
        keep_going: the other tasks continue when one fails.
        mpiexec: the command that starts the tasks, where the starter runs one (`cluster.mpiexec`).
    """

    folder: Path
    nodes: int
    tasks_per_node: int
    grace: float
    command: Sequence[str]
    signals: list[int]
    keep_going: bool = False
    mpiexec: Sequence[str] = ()


def environments(hosts: Sequence[str], tasks_per_node: int) -> list[dict[str, str]]:
    """Returns for each task the variables with its rank, its node and the hosts. Pure."""
    tasks = len(hosts) * tasks_per_node
    common = {"LAUNCHER_HOSTS": ",".join(hosts), "LAUNCHER_TASKS": str(tasks)}
    return [
        {**common, "LAUNCHER_TASK": str(task), "LAUNCHER_NODE": str(task // tasks_per_node)} for task in range(tasks)
    ]


def collect_signals() -> list[int]:
    """Handles SIGTERM and SIGINT; returns a list to which each received signal is added."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    return signals


def watch(
    tasks: Sequence[Task], signals: Sequence[int], grace: float, pause: float, *, keep_going: bool = False
) -> int:
    """Waits until all tasks have ended. A stop signal or a failed task ends the others.

    Args:
        tasks: the started tasks.
        signals: the list of `collect_signals`, which was called before they started.
        grace: seconds between SIGTERM and SIGKILL.
        pause: seconds between two polls.
        keep_going: the other tasks continue when one fails.

    Returns:
        The exit status of the first that failed, else 0.
    """
    kill_at, first_failure = None, 0
    while True:
        codes = [task.poll() for task in tasks]
        first_failure = first_failure or next((code for code in codes if code), 0)
        if None not in codes:
            return first_failure if first_failure >= 0 else 128 - first_failure
        left = [task for task, code in zip(tasks, codes, strict=True) if code is None]
        ending = signals or (first_failure and not keep_going) or errors.RESUME in codes  # it goes on elsewhere
        if kill_at is None and ending:
            kill_at = time.monotonic() + grace
            for task in left:
                task.terminate()
            if signals:
                _record(signal.Signals(signals[0]))
        elif kill_at is not None and time.monotonic() > kill_at:
            for task in left:
                task.kill()
        time.sleep(pause)


def _record(request: signal.Signals) -> None:
    """Records the stop request at once: PBS may kill the job script before that records the end."""
    Events(current_attempt(), "spawn")(StopRequested(signal=request.name, host=socket.gethostname()))
