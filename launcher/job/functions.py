"""The driver of a job of submitit functions: starts the tasks that call them.

It is the job's first process, as the driver of a run is (`launcher.job.driver`). Functions have no lease, attempts or
events.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher import processes
from launcher.errors import NO_RETRY, RunError
from launcher.files import shared_files
from launcher.job import driver
from launcher.runs.job_file import FunctionFile
from launcher.runs.time_left import uptime
from launcher.schedulers.tasks import environments

FIRST_JOB = "LAUNCHER_FIRST_JOB"  # see launcher.schedulers.qsub


def main(arguments: Sequence[str]) -> int:
    """Runs the job of the file arguments[0]; the other arguments tell what failed in the job script before."""
    job_file, *failed = arguments
    shared_files.in_a_job = True
    try:
        job = driver.read_job(job_file, FunctionFile)
    except (RunError, OSError) as error:
        return driver.refuse(error)
    for name in job.signals:  # the tasks get the signal too
        signal.signal(getattr(signal, f"SIG{name}"), lambda *_: None)
    begun, requested = float(os.environ.pop(driver.BEGUN)), os.environ.pop(driver.STOP)
    if requested:
        return 128 + getattr(signal, requested)
    if failed:
        return _report(job, *failed[1:])
    index, output = os.environ.pop("LAUNCHER_ARRAY_INDEX", job.index), os.environ.pop("LAUNCHER_OUTPUT")
    seconds = job.seconds - (uptime() - begun)
    os.environ.update(
        job.variables, LAUNCHER_PAYLOAD=f"{job.payload}_{index}.pkl", LAUNCHER_DEADLINE=str(int(time.time() + seconds)),
        LAUNCHER_JOB_ID=os.environ.get(FIRST_JOB) or os.environ["LAUNCHER_JOB_ID"],
    )  # fmt: skip
    if job.code_root is not None:
        os.environ["PYTHONPATH"] = ":".join(filter(None, (job.code_root, os.environ.get("PYTHONPATH"))))
    code = _run(job)
    if job.teardown:
        _command(["bash", "-c", "\n".join(job.teardown)])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    path = Path(job.folder, output)  # of the scheduler itself, or of set-up lines
    if path.exists() and not path.stat().st_size:
        path.unlink(missing_ok=True)
    return code


def _report(job: FunctionFile, what: str, line: str = "0", code: str = "0") -> int:
    host = socket.gethostname()
    if what == "setup":
        which = f"set-up line {line}" if int(line) else "a set-up line, which ended the shell,"
        words = f"{which} failed on {host} (exit {code})"
    elif what == "folder":
        words = f"{host} cannot enter {job.workdir}"
    else:
        words = f"{host} cannot read {job.environment}: is it on a file system that all nodes share?"
    print(f"launcher: {words}", file=sys.stderr)
    return NO_RETRY


def _run(job: FunctionFile) -> int:
    if not job.start:
        (place,) = environments([socket.gethostname()], 1)
        return _command(job.task, **place, **{processes.GUARD: f"{os.environ['LAUNCHER_OWN_JOB']}.{os.getpid()}"})
    files = f"{job.folder}/.tasks-{os.urandom(8).hex()}"
    try:
        return _command([*job.start, *job.task], LAUNCHER_TASK_FILES=files)
    finally:
        shutil.rmtree(files, ignore_errors=True)


def _command(words: Sequence[str], **more: str) -> int:
    return driver.wait(subprocess.Popen(words, env={**os.environ, **more}))
