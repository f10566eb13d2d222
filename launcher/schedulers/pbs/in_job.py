"""What a job asks PBS about itself. Needs the standard library only, since the job's driver loads it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from launcher.runs.job_file import BEGUN, uptime

TIMEOUT = 10.0  # seconds for a command
_WALLTIME = re.compile(r"^\s+Resource_List\.walltime = (\d+):(\d+):(\d+)$", re.MULTILINE)


def find(command: str) -> str | None:
    """Returns the path of a PBS command on PATH, else in PBS_EXEC of pbs.conf (a job's PATH may lack it), or None."""
    folders = [os.environ.get("PATH", os.defpath)]
    with contextlib.suppress(OSError):
        text = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf")).read_text()
        folders += [f"{folder}/bin" for folder in re.findall(r"^PBS_EXEC=(\S+)", text, re.MULTILINE)]
    return shutil.which(command, path=os.pathsep.join(folders))


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """Returns the seconds until PBS ends this job, or None: unknown.

    The wall time need not be the one that was asked for: qalter, a site's hook and min_walltime change it.
    """
    qstat, begun, found = find("qstat"), environ.get(BEGUN), None
    if qstat and begun:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [qstat, "-f", environ["PBS_JOBID"]], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, errors="replace", timeout=TIMEOUT, check=False,
            )  # fmt: skip
            found = _WALLTIME.search(done.stdout)
    if not found or not begun:
        return None
    hours, minutes, seconds = map(int, found.groups())
    return 3600 * hours + 60 * minutes + seconds - max(uptime() - float(begun), 0.0)
