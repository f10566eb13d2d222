"""The command in job scripts that starts a run's tasks without srun, and ends them together.

    python -m launcher.schedulers.tasks [--go-on] [--STARTER[=WORDS]] NODES TASKS_PER_NODE GRACE COMMAND...

STARTER is a key of registry.STARTERS, which starts the tasks on the nodes of the current job: on its first NODES hosts
(pbsdsh, qrsh), or as WORDS, the site's mpiexec with its arguments, decides. Without a starter, all tasks run on this
host, which then simulates NODES nodes. Tasks derive their rank from LAUNCHER_* variables, or from those of mpiexec.

SIGTERM and SIGINT are forwarded to the tasks as SIGTERM. When a task fails, the others get SIGTERM and, GRACE seconds
later, SIGKILL. With --go-on they continue instead (elastic runs). The exit status is that of the first failed task.
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
    """Returns the path of the folder for the tasks' files, on a shared file system. The folder does not exist yet."""
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
