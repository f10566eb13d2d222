"""The command that starts a job's tasks without srun, and ends them together: makes it, and is it.

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
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import ConfigError
from launcher.own_module import own_module
from launcher.runs.event_writer import current_attempt
from launcher.schedulers import registry
from launcher.schedulers.task_group import TaskRequest, collect_signals, environments, watch


def command(
    python: str, nodes: int, tasks_per_node: int, grace: int,
    *, starter: str | None, mpiexec: Sequence[str] = (), keep_going: bool = False, cpus_per_task: int | None = None,
) -> list[str]:  # fmt: skip
    """Returns the command that starts a program on all nodes of a job; the caller appends the program's argv.

    Args:
        python: interpreter that runs this module.
        nodes: number of nodes.
        tasks_per_node: number of tasks on each node.
        grace: seconds between SIGTERM and SIGKILL when the tasks are stopped.
        starter: program that starts tasks on other nodes (`registry.STARTERS`); None: all run on this machine.
        mpiexec: arguments of an mpiexec command, with placeholders such as {nodes}; empty: mpiexec is not used.
        keep_going: whether the other tasks continue when one fails.
        cpus_per_task: value of the placeholder {cpus_per_task}; None: this placeholder is unknown.

    Raises:
        ConfigError: mpiexec has an unknown placeholder.
    """
    options = ["--go-on"] if keep_going else []
    if starter is not None and not mpiexec:
        options.append(f"--{starter}")
    elif mpiexec:
        counts = {"nodes": nodes, "tasks": nodes * tasks_per_node, "tasks_per_node": tasks_per_node}
        counts |= {} if cpus_per_task is None else {"cpus_per_task": cpus_per_task}
        try:
            options.append(f"--{starter}=" + shlex.join(word.format(**counts) for word in mpiexec))
        except (KeyError, IndexError, ValueError) as error:
            *names, last = (f"{{{name}}}" for name in counts)
            raise ConfigError(
                f"mpiexec: {error} cannot be filled in; there are {', '.join(names)} and {last}"
            ) from None
    return [python, *own_module("launcher.schedulers.tasks"), *options, *map(str, (nodes, tasks_per_node, grace))]


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
