"""Starts the tasks of a run where no srun does, and ends them together: what srun is to Slurm.

    python -m launcher.schedulers.tasks [--go-on] [--pbsdsh | --mpiexec=WORDS] NODES TASKS_PER_NODE GRACE COMMAND...

The nodes are simulated on this host, or with --pbsdsh the first NODES hosts of the PBS job that we are in. Every task
finds its place in LAUNCHER_* variables. With --mpiexec that command starts the tasks and tells them their places.
SIGTERM and SIGINT are handed on to the tasks. When a task fails, the others get SIGTERM and, GRACE seconds later,
SIGKILL, but with --go-on they go on, as a run that may lose nodes wants it. The exit status is that of the task that
failed first.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from launcher import errors


class Task(Protocol):
    """What is watched: a process of this host, or one of another node that pbsdsh started."""

    def poll(self) -> int | None:
        """Its exit status once it has ended; negative for a signal."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


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
    from launcher.runs.event_writer import (  # takes as long as all else here, and few attempts need it
        Events,
        current_attempt,
    )

    Events(current_attempt(), "spawn")("stop_requested", signal=request.name, host=socket.gethostname())


def task_files() -> Path:
    """A folder that is yet to be made, on a file system that all nodes share, for what tasks need and how they end."""
    if named := os.environ.get("LAUNCHER_TASK_FILES"):
        return Path(named)
    from launcher.runs.event_writer import current_attempt

    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    return attempt.path / "tasks"


def main(arguments: list[str]) -> int:
    told = listen()
    start = next(number for number, word in enumerate(arguments) if not word.startswith("--"))
    options, (nodes, tasks_per_node, grace, *command) = arguments[:start], arguments[start:]
    go_on = "--go-on" in options
    os.environ["LAUNCHER_JOB"] = os.environ.get("LAUNCHER_JOB_ID", "")
    if "--pbsdsh" in options:
        from launcher.schedulers.pbs import pbsdsh

        return pbsdsh.run(task_files(), int(nodes), int(tasks_per_node), float(grace), command, told, go_on=go_on)
    if words := next((word for word in options if word.startswith("--mpiexec=")), None):
        from launcher.schedulers.pbs import mpiexec

        return mpiexec.run(shlex.split(words.partition("=")[2]), task_files(), float(grace), command, told)
    places = environments([socket.gethostname()] * int(nodes), int(tasks_per_node))
    tasks = [subprocess.Popen(command, env={**os.environ, **place}) for place in places]
    return watch(tasks, told, float(grace), pause=0.02, go_on=go_on)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
