"""Starts tasks on the nodes of the current PBS job, each with its own pbsdsh (see `task`).

Tasks survive their pbsdsh, so a guard process kills them if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import errors
from launcher.schedulers import task_group
from launcher.schedulers.hostlist import hosts_of
from launcher.schedulers.pbs import task as pbs_task
from launcher.schedulers.pbs.commands import PBS
from launcher.schedulers.pbs.resource_queries import ResourceQueries
from launcher.schedulers.queries import QueryError


@contextlib.contextmanager
def _guarded(tasks: Sequence[pbs_task.PbsTask], environment: pbs_task.TaskEnvironment) -> Iterator[None]:
    # The environment's files are removed at the end of the context, too
    reading, writing = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.setsid()
        os.close(writing)
        if not os.read(reading, 1):
            for task in tasks:
                task.kill()
            environment.remove()
        os._exit(0)
    os.close(reading)
    try:
        yield
        os.write(writing, b"x")
    finally:
        os.close(writing)
        os.waitpid(guard, 0)
        environment.remove()  # it may have secrets


def find(command: str = "pbsdsh") -> str | None:
    """Returns the path of a PBS command on PATH, else in PBS_EXEC of pbs.conf, because a job's PATH may lack it.

    Returns None if it is in neither.
    """
    folders = [os.environ.get("PATH", os.defpath)]
    with contextlib.suppress(OSError):
        text = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text()
        folders += [f"{folder}/bin" for folder in re.findall(r"^PBS_EXEC=(\S+)", text, re.MULTILINE)]
    return shutil.which(command, path=os.pathsep.join(folders))


def run(request: task_group.TaskRequest) -> int:
    """Starts the tasks on the first hosts of the job, and waits until all of them have ended.

    Returns:
        The exit status of the first failed task, else 0; NO_RETRY if pbsdsh is missing or the job has too few hosts.
    """
    folder, nodes, tasks_per_node = request.folder, request.nodes, request.tasks_per_node
    os.umask(0o077)
    pbsdsh = find()
    if pbsdsh is None:
        print("launcher: pbsdsh is not on PATH: add the folder of the PBS commands to it", file=sys.stderr)
        return errors.NO_RETRY
    lines = dict(list(hosts_of(Path(os.environ["PBS_NODEFILE"]).read_text()).items())[:nodes])
    if len(lines) < nodes:
        print(
            f"launcher: the PBS job is on {', '.join(lines)}, and {nodes} different hosts are needed", file=sys.stderr
        )
        return errors.NO_RETRY
    hosts = list(lines)
    places = task_group.environments(hosts, tasks_per_node)
    folder.mkdir()
    environment = pbs_task.write_environment(folder, {**os.environ, **places[0]})
    pbs_task.write_script(folder, environment, os.getcwd(), request.command)
    tasks = [
        pbs_task.PbsTask(pbsdsh, lines[hosts[node]], hosts[node], folder, number, node)
        for node in range(nodes)
        for number in range(node * tasks_per_node, (node + 1) * tasks_per_node)
    ]
    with _guarded(tasks, environment):
        for task in tasks:
            task.start()
        return task_group.watch(
            tasks,
            request.signals,
            request.grace,
            pause=max(0.1, 0.01 * len(tasks)),
            keep_going=request.keep_going,
            lost=lambda: _on_lost_nodes([hosts[node] for node in range(nodes) for _ in range(tasks_per_node)]),
        )


def _on_lost_nodes(hosts: Sequence[str]) -> list[int]:
    try:
        nodes = ResourceQueries(PBS()).nodes()
    except QueryError:
        return []
    down = {name for node in nodes if "down" in node.state for name in (node.name, node.others.get("host"))}
    return [number for number, host in enumerate(hosts) if host in down or host.partition(".")[0] in down]
