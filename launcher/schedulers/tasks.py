"""Starts the tasks of a run where there is no srun, and ends them together.

    python -m launcher.schedulers.tasks [--go-on] [--STARTER[=WORDS]] NODES TASKS_PER_NODE GRACE COMMAND...

The nodes are simulated on this host, unless a starter (registry.STARTERS) is named that starts tasks on those of the
job that we are in: pbsdsh on the first NODES hosts, or an mpiexec, which also tells the tasks their places. Elsewhere
every task finds its place in LAUNCHER_* variables.
SIGTERM and SIGINT are handed on to the tasks. When a task fails, the others get SIGTERM and, GRACE seconds later,
SIGKILL, but with --go-on they go on, as a run that may lose nodes wants it. The exit status is that of the task that
failed first.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from launcher.runs.event_writer import current_attempt
from launcher.schedulers import registry
from launcher.schedulers.task_group import TaskRequest, collect_signals, environments, watch


def task_files() -> Path:
    """Returns the folder for the files of the tasks, on a file system that all nodes share. It does not exist yet."""
    if named := os.environ.get("LAUNCHER_TASK_FILES"):
        return Path(named)
    attempt = current_attempt()
    assert attempt is not None, "only a job script of the launcher starts this"
    return attempt.path / "tasks"


def main(arguments: list[str]) -> int:
    signals = collect_signals()
    start = next(number for number, word in enumerate(arguments) if not word.startswith("--"))
    options, (nodes, tasks_per_node, grace, *command) = arguments[:start], arguments[start:]
    keep_going = "--go-on" in options
    os.environ["LAUNCHER_JOB"] = os.environ.get("LAUNCHER_JOB_ID", "")
    if started_by := next((option for option in options if option != "--go-on"), None):
        name, _, words = started_by.removeprefix("--").partition("=")
        run = registry.starter(name)
        return run(
            TaskRequest(
                task_files(),
                int(nodes),
                int(tasks_per_node),
                float(grace),
                command,
                signals,
                keep_going,
                shlex.split(words),
            )
        )
    places = environments([socket.gethostname()] * int(nodes), int(tasks_per_node))
    tasks = [subprocess.Popen(command, env={**os.environ, **place}) for place in places]
    return watch(tasks, signals, float(grace), pause=0.02, keep_going=keep_going)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
