"""Tasks of one command that end together: what is wanted of a starter, and the watch over what it has started."""

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
    """What is watched: a process of this host, or one of another node that pbsdsh started."""

    def poll(self) -> int | None:
        """Its exit status once it has ended; negative for a signal."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Wanted:
    """What a starter is to start.

    Attributes:
        folder: a new folder for what the tasks need and how they end, on a file system that all nodes share.
        nodes, tasks_per_node: how many hosts, and tasks on each.
        grace: seconds between SIGTERM and SIGKILL.
        command: what every task runs.
        told: the signals that asked us to stop, as they come.
        go_on: a task that fails does not end the others.
        words: the starter's own command, where it is not always the same.
    """

    folder: Path
    nodes: int
    tasks_per_node: int
    grace: float
    command: Sequence[str]
    told: Sequence[int]
    go_on: bool = False
    words: Sequence[str] = ()


def environments(hosts: Sequence[str], tasks_per_node: int) -> list[dict[str, str]]:
    """The variables that tell each task its place, by task. Pure."""
    tasks = len(hosts) * tasks_per_node
    common = {"LAUNCHER_HOSTS": ",".join(hosts), "LAUNCHER_TASKS": str(tasks)}
    return [
        {**common, "LAUNCHER_TASK": str(task), "LAUNCHER_NODE": str(task // tasks_per_node)} for task in range(tasks)
    ]


def listen() -> list[int]:
    """The signals that ask us to stop, from now on, as they come."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    return told


def watch(tasks: Sequence[Task], told: Sequence[int], grace: float, pause: float, *, go_on: bool = False) -> int:
    """Stays until all tasks have ended.

    Args:
        tasks: they have been started.
        told: what `listen` returned before that.
        grace: seconds between SIGTERM and SIGKILL.
        pause: seconds between two looks at them.
        go_on: a task that fails does not end the others.

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
        ending = told or (first_failure and not go_on) or errors.RESUME in codes  # it goes on elsewhere
        if kill_at is None and ending:
            kill_at = time.monotonic() + grace
            for task in left:
                task.terminate()
            if told:
                _record(signal.Signals(told[0]))
        elif kill_at is not None and time.monotonic() > kill_at:
            for task in left:
                task.kill()
        time.sleep(pause)


def _record(request: signal.Signals) -> None:
    """Notes at once why this attempt ends: PBS may kill its script before that can record the end."""
    Events(current_attempt(), "spawn")(StopRequested(signal=request.name, host=socket.gethostname()))
