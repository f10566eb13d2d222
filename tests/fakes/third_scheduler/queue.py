"""The scheduler: a job is a folder in $THIRD_QUEUE, with a process that waits, runs the script, and records its state.

python -m tests.fakes.third_scheduler.queue FOLDER

FOLDER/job.json     id, script, token, name, and the jobs that must end first
FOLDER/after        the current list of these jobs
FOLDER/output       a link to the output in the run directory
FOLDER/pid, state   of the process that runs the script; RUNNING, and DONE, FAILED or CANCELLED when it is over
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OVER = ("DONE", "FAILED", "CANCELLED")
LOOK = 0.1  # seconds between two looks at the jobs before


def folder() -> Path:
    return Path(os.environ["THIRD_QUEUE"])


def submit(script: str, token: str, name: str, after: list[str], environment: dict[str, str]) -> str:
    """Adds a job to the queue; returns its id."""
    number = 1
    while True:
        place = folder() / str(number)
        try:
            place.mkdir(mode=0o700, parents=True)
            break
        except FileExistsError:
            number += 1
    (place / "after").write_text(" ".join(after))
    write(place, "state", "PENDING")
    record = {"id": str(number), "script": script, "token": token, "name": name}
    write(place, "job.json", json.dumps(record))
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(place)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
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
    run(Path(sys.argv[1]))
