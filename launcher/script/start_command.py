"""Makes the command that starts another command on all nodes of a job by `launcher.schedulers.tasks`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from launcher.errors import ConfigError
from launcher.own_module import own_module
from launcher.script.quoting import Raw
from launcher.spec.plan import JobPlan


def start(plan: JobPlan) -> list[Any]:
    """Returns the command that starts a program on all nodes of a run's job. The caller appends the program's argv."""
    return spawn(
        plan.python, plan.nodes, plan.tasks_per_node, plan.launch.grace + 5, starter=plan.starter,
        mpiexec=plan.cluster.settings.get("mpiexec", ()), keep_going=plan.min_nodes < plan.nodes,
        cpus_per_task=plan.cpus_per_task,
    )  # fmt: skip


def spawn(
    python: str | Raw, nodes: int, tasks_per_node: int, grace: int,
    *, starter: str | None, mpiexec: Sequence[str] = (), keep_going: bool = False, cpus_per_task: int | None = None,
) -> list[Any]:  # fmt: skip
    """Returns the command that starts a program on all nodes with `launcher.schedulers.tasks`; see `start`.

    Args:
        python: interpreter that runs `launcher.schedulers.tasks`.
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
    options: list[Any] = ["--go-on"] if keep_going else []
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
    return [python, *own_module("launcher.schedulers.tasks"), *options, nodes, tasks_per_node, grace]
