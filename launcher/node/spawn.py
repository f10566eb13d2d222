"""Starts the tasks of the simulated nodes of a local run: what srun is to Slurm.

    python -m launcher.node.spawn NODES TASKS_PER_NODE GRACE COMMAND...

Every task finds its place in LAUNCHER_* variables. SIGTERM and SIGINT are handed on to the tasks. When a task fails,
the others get SIGTERM and, GRACE seconds later, SIGKILL. The exit status is that of the task that failed first.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time


def environments(nodes: int, tasks_per_node: int, host: str) -> list[dict[str, str]]:
    """The variables that tell each task its place, by task. Pure."""
    tasks = nodes * tasks_per_node
    common = {"LAUNCHER_HOSTS": ",".join([host] * nodes), "LAUNCHER_TASKS": str(tasks)}
    return [
        {**common, "LAUNCHER_TASK": str(task), "LAUNCHER_NODE": str(task // tasks_per_node)} for task in range(tasks)
    ]


def main(arguments: list[str]) -> int:
    nodes, tasks_per_node, grace, *command = arguments
    job = {"LAUNCHER_JOB": os.environ.get("LAUNCHER_JOB_ID", "")}
    tasks = [
        subprocess.Popen(command, env={**os.environ, **job, **place})
        for place in environments(int(nodes), int(tasks_per_node), socket.gethostname())
    ]
    kill_at: float | None = None

    def stop(*_: object) -> None:
        nonlocal kill_at
        if kill_at is None:
            kill_at = time.monotonic() + float(grace)
            for task in tasks:
                if task.poll() is None:
                    task.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    first_failure = 0
    while any(task.poll() is None for task in tasks):
        time.sleep(0.02)
        failed = next((task.returncode for task in tasks if task.poll()), 0)
        if failed and not first_failure:
            first_failure = failed
            stop()
        if kill_at is not None and time.monotonic() > kill_at:
            for task in tasks:
                task.kill()
    first_failure = first_failure or next((task.returncode for task in tasks if task.returncode), 0)
    return first_failure if first_failure >= 0 else 128 - first_failure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
