"""The scheduler: a job is a folder in $THIRD_QUEUE, with a process that waits, runs the script, and records its state.

python -m tests.fakes.third_scheduler.queue submit [--token=TOKEN] [--after=JOB] SCRIPT   prints the job's id
python -m tests.fakes.third_scheduler.queue FOLDER                                          runs a job

FOLDER/job.json     id, script, token, and the jobs that must end first
FOLDER/after        the current list of these jobs
FOLDER/output       a link to the output in the run directory
FOLDER/pid, state   of the process that runs the script; RUNNING, and DONE, FAILED or CANCELLED when it is over
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OVER = ("DONE", "FAILED", "CANCELLED")
MODULE = "tests.fakes.third_scheduler.queue"
LOOK = 0.1  # seconds between two looks at the jobs before


def folder() -> Path:
    return Path(os.environ["THIRD_QUEUE"])


def submit(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Adds a job to the queue, with options of the command line or else of the script; returns its id."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--token")
    parser.add_argument("--after", action="append", default=[])
    parser.add_argument("script")
    asked = parser.parse_args(words)
    noted = re.search(r"^#THIRD --token (\S+)$", Path(asked.script).read_text(), re.MULTILINE)
    token = asked.token or (noted[1] if noted else "")
    number = 1
    while True:
        place = folder() / str(number)
        try:
            place.mkdir(mode=0o700, parents=True)
            break
        except FileExistsError:
            number += 1
    (place / "after").write_text(" ".join(asked.after))
    write(place, "state", "PENDING")
    record = {"id": str(number), "script": asked.script, "token": token}
    write(place, "job.json", json.dumps(record))
    subprocess.Popen(
        [sys.executable, "-m", MODULE, str(place)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, cwd=Path(__file__).parents[3], env=environment,
    )  # fmt: skip
    return str(number)


def jobs() -> list[dict[str, Any]]:
    """Returns all jobs, with their states."""
    found = []
    for place in folder().glob("*"):
        if (place / "job.json").exists():
            found.append({**json.loads((place / "job.json").read_text()), "state": (place / "state").read_text()})
    return found


def cancel(job_id: str) -> None:
    place = folder() / job_id
    if (place / "state").read_text() not in OVER:
        write(place, "cancelled", "")
        if (place / "pid").exists():
            os.killpg(int((place / "pid").read_text()), signal.SIGTERM)


def write(place: Path, name: str, text: str) -> None:
    """Writes a file atomically."""
    temporary = place / f".{name}-{os.getpid()}"
    temporary.write_text(text)
    temporary.replace(place / name)


def run(place: Path) -> None:
    job = json.loads((place / "job.json").read_text())
    while not (place / "cancelled").exists():
        before = [folder() / each for each in (place / "after").read_text().split()]
        if all((each / "state").read_text() in OVER for each in before):
            break
        time.sleep(LOOK)
    if (place / "cancelled").exists():
        write(place, "state", "CANCELLED")
        return
    script = Path(job["script"])
    os.umask(0o077)
    with (script.parent / f"output-{job['id']}.log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", script], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            cwd="/", env={**os.environ, "THIRD_JOB": job["id"], "LAUNCHER_JOB_ID": job["id"]},
        )  # fmt: skip
        write(place, "pid", str(process.pid))
        write(place, "state", "RUNNING")
        code = process.wait()
    write(place, "state", "CANCELLED" if (place / "cancelled").exists() else "DONE" if code == 0 else "FAILED")


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        print(submit(sys.argv[2:], os.environ))
    else:
        run(Path(sys.argv[1]))
