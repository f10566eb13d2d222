"""What a job asks Slurm about itself. Needs the standard library only, since the job's driver loads it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping

TIMEOUT = 10.0  # seconds for each command
_TIME = re.compile(r"(\d+)-(\d+)-(\d+)T(\d+):(\d+):(\d+)")


def own_job(environ: Mapping[str, str]) -> str:
    """Returns the id of the job, or of the array's element, that this process is in."""
    array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # One element has the array's id as SLURM_JOB_ID, which for Slurm's commands means all elements
    return f"{array}_{element}" if array and element else environ["SLURM_JOB_ID"]


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """Returns the seconds until Slurm ends this job, by its controller's time if known; None: no job, or unknown."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    # Local times repeat when clocks are set back
    ends, config = map(_seconds, _asked("%e", {**environ, "SLURM_TIME_FORMAT": "standard", "TZ": "UTC"}))
    now = time.mktime(time.gmtime(time.time())) if config is None else config
    return None if ends is None else ends - now


def is_away(environ: Mapping[str, str]) -> bool:
    """Returns whether Slurm's controller does not answer, without which srun starts nothing."""
    process = _start(["scontrol", "ping"], environ) if environ.get("SLURM_JOB_ID") else None
    if process is not None:
        _answer(process)
    return process is not None and process.returncode != 0


def kill_wait(environ: Mapping[str, str]) -> float | None:
    """Returns the seconds from SIGTERM to SIGKILL (KillWait) of this job; None: Slurm does not end it, or unknown."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    state, config = _asked("%T", environ)
    found = re.search(r"^KillWait\s*= (\d+)", config, re.MULTILINE)
    # After a signal that a user sends (--signal=B:TERM@600, scancel --full --signal=TERM) it runs on
    return None if found is None or "RUNNING" in state.split() else float(found[1])


def end_for_good(environ: Mapping[str, str]) -> None:
    """Keeps Slurm from starting this job again for its exit code, as with RequeueExit and --requeue=expedite."""
    if environ.get("SLURM_JOB_ID") and "RUNNING" in _asked("%T", environ)[0].split():  # else it was requeued
        _answer(_start(["scontrol", "update", f"JobId={own_job(environ)}", "Requeue=0"], environ))


def _asked(field: str, environ: Mapping[str, str]) -> list[str]:
    # What squeue prints of this job, and Slurm's configuration; both are asked at the same time
    environ = {name: value for name, value in environ.items() if not name.startswith("SQUEUE_")}
    commands = (["squeue", "-h", "-j", own_job(environ), "-o", field], ["scontrol", "show", "config"])
    return [_answer(each) for each in [_start(words, environ) for words in commands]]


def _start(words: list[str], environ: Mapping[str, str]) -> subprocess.Popen[str] | None:
    try:
        return subprocess.Popen(
            words, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
    except OSError:
        return None


def _answer(process: subprocess.Popen[str] | None) -> str:
    if process is None:
        return ""
    try:
        return process.communicate(timeout=TIMEOUT)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return ""


def _seconds(answer: str) -> float | None:
    # From any moment, since only differences count; standard time has no gaps and no repetitions.
    # With SLURM_CLUSTERS squeue prints `CLUSTER: NAME` first, despite -h
    match = _TIME.search(re.sub(r"\ACLUSTER: .*\n", "", answer).partition(os.linesep)[0])
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    return time.mktime((year, month, day, hour, minute, second, 0, 0, 0))
