"""The command that starts a job's tasks without srun, and ends them together: makes it, and is it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from launcher import errors
from launcher.errors import ConfigError
from launcher.failures import messages
from launcher.fast_dataclasses import Struct
from launcher.files.retried_reads import Ok, exists
from launcher.paths import own_module
from launcher.runs import event_files
from launcher.runs.directory import Events, current_attempt
from launcher.runs.events import Fault, StopRequested
from launcher.schedulers import topology

STRAGGLERS = 60.0  # seconds after the end of the run in which tasks end by themselves
NOTICED = 0.1  # seconds in which a stop signal is noticed, however long the pause between two polls of the tasks is


class Task(Protocol):
    """A task: a process on this host, or one that a task starter such as pbsdsh started on another node."""

    def poll(self) -> int | None:
        """Returns the task's exit status, negative if a signal killed it; None while it is running."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class TaskRequest(Struct):
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
    common = {**topology.variable(hosts), "LAUNCHER_TASKS": str(tasks)}
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
    """Waits until all tasks have ended; returns the status of the first failed task (128 + N after signal N), else 0.

    When a stop signal arrives, a task exits with RESUME, or (unless `keep_going`) a task fails in any other way, the
    remaining tasks get SIGTERM and, `grace` seconds later, SIGKILL. STRAGGLERS seconds after the agents have recorded
    the exit code of the attempt they get SIGKILL, and do not count: their nodes may be gone, which some starters never
    notice. Tasks of functions have no agents: they get SIGKILL when all that are left are on `lost` nodes (by index),
    which is asked every STRAGGLERS seconds while some have ended and none ends.

    signals: the list of `collect_signals`, which must be called before the tasks start.
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
        left = {number: task for number, task in enumerate(tasks) if codes[number] is None}
        ending = signals or (first_failure and not keep_going) or errors.RESUME in codes  # another job continues it
        now = time.monotonic()
        if over_at is None and now >= look_at:
            look_at, over_at = now + 1.0, now if attempt_is_over() else None
        gone = False
        if ended != (ended := len(tasks) - len(left)):
            ask_at = now + STRAGGLERS
        elif ended and now >= ask_at:
            ask_at = now + STRAGGLERS
            gone = left.keys() <= set(lost())
        if over or gone or (kill_at is not None and now > kill_at):
            for task in left.values():
                task.kill()
        elif kill_at is None and ending:
            kill_at = now + grace
            for task in left.values():
                task.terminate()
            if signals:  # recorded at once, because PBS may kill the job script soon
                request = StopRequested(signal=signal.Signals(signals[0]).name, host=socket.gethostname())
                Events(current_attempt(), "spawn")(request)
        poll_at = time.monotonic() + pause
        while (rest := poll_at - time.monotonic()) > 0 and not (signals and kill_at is None):
            time.sleep(min(rest, NOTICED))


def report(fault: Fault, writer: str) -> None:
    """Prints why a task has failed, and writes it to the events of the current attempt, if there is one."""
    print(f"launcher: {messages.of_fault(fault)}", file=sys.stderr, flush=True)
    if attempt := current_attempt():
        event_files.append(attempt.events_file(writer), fault)


def attempt_is_over() -> bool:
    """Returns whether the agents have recorded the attempt's exit code; False as well if that is not known now."""
    attempt = current_attempt()
    return attempt is not None and exists(attempt.path / "exit_code", retry_seconds=0) == Ok(True)


# -- The command: python -m launcher.schedulers.tasks [--go-on] [--STARTER[=WORDS]] NODES TASKS_PER_NODE GRACE COMMAND..
# STARTER is a key of registry.STARTERS, which starts the tasks on the job's first NODES hosts (pbsdsh, qrsh), or as
# WORDS, the site's mpiexec, decides. Without one, all tasks run on this host, which then simulates NODES nodes.


def command(
    python: str, nodes: int, tasks_per_node: int, grace: int,
    *, starter: str | None, mpiexec: Sequence[str] = (), keep_going: bool = False, cpus_per_task: int | None = None,
) -> list[str]:  # fmt: skip
    """Returns the command that starts a program on all nodes of a job; ConfigError: a wrong placeholder in mpiexec."""
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
            there = f"there are {', '.join(names)} and {last}"
            raise ConfigError(f"mpiexec: {error} cannot be filled in; {there}") from None
    return [python, *own_module("launcher.schedulers.tasks"), *options, *map(str, (nodes, tasks_per_node, grace))]


def task_files() -> Path:
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
        from launcher.schedulers import registry

        run = registry.starter(name)
        mpiexec = shlex.split(words)
        request = TaskRequest(
            task_files(), int(nodes), int(tasks_per_node), float(grace), command, signals, keep_going, mpiexec
        )
        return run(request)
    places = environments([socket.gethostname()] * int(nodes), int(tasks_per_node))
    tasks = [subprocess.Popen(command, env={**os.environ, **place}) for place in places]
    return watch(tasks, signals, float(grace), pause=0.02, keep_going=keep_going)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
