"""The program that a job starts on each node (with launch=tasks for each rank): `python -m launcher.agent RUN_DIR`.

It checks that nobody else can write to the run directory, since a payload is unpickled from there. Then it hands over
to submitit, so that the job is an ordinary submitit job with a result.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from launcher import errors, processes
from launcher.environment import archives
from launcher.failures.codes import FaultCode
from launcher.runs.directory import Run, current_attempt, report_start_failure
from launcher.schedulers import topology


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
    if os.environ["LAUNCHER_JOB_ID"] == os.environ.get("SLURM_JOB_ID"):
        os.environ["SUBMITIT_EXECUTOR"] = "slurm"
    else:
        try:
            _pose_as_local_job()
        except (topology.TopologyError, OSError) as error:
            return report_start_failure(None, "agent", error, FaultCode.REFUSED)

    try:
        from submitit.core import plugins
        from submitit.core.logger import get_logger
        from submitit.core.submission import process_job
        from submitit.local.local import LocalJobEnvironment
        from submitit.slurm.slurm import SlurmJobEnvironment

        gc.disable()  # during the import of torch it would scan all objects many times: 0.15 of 0.85 s
        from launcher.agent.attempt import AttemptFailed
    except ImportError as error:
        return report_start_failure(None, "agent", ImportError(f"{sys.executable}: {error}"), FaultCode.REFUSED)
    gc.freeze()
    gc.enable()
    # Else it reads the metadata of all installed packages, which is much on each node
    plugins.get_job_environments = lambda: {"slurm": SlurmJobEnvironment(), "local": LocalJobEnvironment()}  # type: ignore[assignment]
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
        archives.leave_own()
    return errors.DONE


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
    leave(main(sys.argv[1]))
