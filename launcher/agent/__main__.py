"""The program that a job starts on each node (with launch=tasks for each rank): `python -m launcher.agent RUN_DIR`.

It checks that nobody else can write to the run directory, since a payload is unpickled from there. Then it hands over
to submitit, so that the job is an ordinary submitit job with a result.

`python -m launcher.agent --simulate [--go-on] NODES TASKS_PER_NODE GRACE RUN_DIR` runs the agents of several nodes that
this host simulates, as `launcher.schedulers.tasks` does, in forks of one process: torch is imported once for them all.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from launcher import errors, processes
from launcher.environment import unpack_on_node
from launcher.own_module import own_module
from launcher.runs.directory import Run, current_attempt, report_start_failure
from launcher.schedulers import tasks, topology


def main(run_dir: str) -> int:
    os.umask(0o077)
    run = Run(Path(run_dir))
    if "LAUNCHER_JOB_ID" not in os.environ:
        print("launcher: this is what a run's script starts; submit with `python -m launcher`", file=sys.stderr)
        return errors.BAD_INPUT
    try:
        run.require_private()
    except errors.UnavailableError as error:
        return report_start_failure(None, "agent", error)
    except (errors.RunError, OSError) as error:
        print(f"launcher: {socket.gethostname()}: {error}", file=sys.stderr)
        return errors.NO_RETRY

    processes.start_guard()
    if "SLURM_JOB_ID" not in os.environ or os.environ.get("LAUNCHER_JOB_ID") != os.environ["SLURM_JOB_ID"]:
        _pose_as_local_job()
    else:
        os.environ["SUBMITIT_EXECUTOR"] = "slurm"

    from submitit.core.logger import get_logger
    from submitit.core.submission import process_job

    began = time.monotonic()
    with _imports_without_collection():
        from launcher.agent.attempt import AttemptFailed

    unpack_on_node.print_summary(time.monotonic() - began)

    get_logger().setLevel("CRITICAL")
    try:
        process_job(run.submitit_folder)
    except errors.UnavailableError as error:
        return report_start_failure(None, "agent", error)
    except AttemptFailed as failure:
        if failure.ours:
            print(f"launcher: {failure}", file=sys.stderr)
        if failure.decides and (attempt := current_attempt()):
            attempt.write_exit_code(failure.exit_code)
        return failure.exit_code
    finally:
        unpack_on_node.leave_own()
    return errors.DONE


def simulate(options: Sequence[str], run_dir: str) -> int:
    """Runs the agents of simulated nodes, and returns the exit status of the first that fails, else 0."""
    *flags, nodes, tasks_per_node, grace = options
    signals = tasks.collect_signals()
    with _imports_without_collection():
        from launcher.agent import workers
        from launcher.agent.attempt import AttemptFailed  # noqa: F401  with all that it imports

        with contextlib.suppress(errors.LauncherError):  # the agents report it
            plan = Run(Path(run_dir)).plan()
            workers.preload(plan.workload.entry, plan.launch.rendezvous_timeout)
    os.environ["LAUNCHER_JOB"] = os.environ.get("LAUNCHER_JOB_ID", "")
    places = tasks.environments([socket.gethostname()] * int(nodes), int(tasks_per_node))
    command, forks = [sys.executable, "-u", *own_module("launcher.agent"), run_dir], not workers.unsafe_to_fork()
    started: list[tasks.Task] = [
        _Fork(place, run_dir) if forks else subprocess.Popen(command, env={**os.environ, **place}) for place in places
    ]
    return tasks.watch(started, signals, float(grace), pause=0.02, keep_going="--go-on" in flags)


class _Fork:
    """An agent in a fork of this process: a `tasks.Task`."""

    def __init__(self, place: Mapping[str, str], run_dir: str) -> None:
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            try:
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                os.environ.update(place)
                sys.argv[1:] = [run_dir]  # as of any other agent: functions in its ranks may look at it
                leave(main(run_dir))
            except BaseException:
                traceback.print_exc()
                leave(errors.FAILED)

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


@contextlib.contextmanager
def _imports_without_collection() -> Iterator[None]:
    # During the import of torch the garbage collector would scan all objects many times: 0.15 of 0.85 s
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _pose_as_local_job() -> None:
    # For every scheduler but Slurm, for which submitit has an environment of its own
    place = topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text())
    os.environ.update(
        SUBMITIT_EXECUTOR="local",
        SUBMITIT_LOCAL_JOB_ID=os.environ["LAUNCHER_JOB_ID"],
        SUBMITIT_LOCAL_NTASKS=str(place.world_size),
        SUBMITIT_LOCAL_GLOBALID=str(place.rank),
        SUBMITIT_LOCAL_LOCALID=str(place.local_rank),
        SUBMITIT_LOCAL_JOB_NUM_NODES=str(place.nnodes),
        SUBMITIT_LOCAL_NODEID=str(place.node_rank),
    )


def leave(code: int) -> NoReturn:
    """Exits at once: the job script has to record the end, and Python's own shutdown takes seconds on a busy node."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    *simulated, run_dir = sys.argv[1:]
    leave(simulate(simulated[1:], run_dir) if simulated else main(run_dir))
