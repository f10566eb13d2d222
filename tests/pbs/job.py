"""Simulates the inside of an interactive PBS job: its variables, its node file, and a pbsdsh on PATH."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

PBSDSH = Path(__file__).with_name("pbsdsh.py")


def inside_job(folder: Path, node_file: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables with which a command runs as if inside a PBS job.

    Args:
        folder: a directory for the files of the simulated job.
        node_file: the lines of the job's node file (PBS_NODEFILE).
    """
    (folder / "bin").mkdir(parents=True)
    home = folder / "home"
    home.mkdir()
    pbsdsh = folder / "bin/pbsdsh"
    pbsdsh.write_text(f'#!/bin/bash\nexec {shlex.join([sys.executable, "-I", str(PBSDSH)])} "$@"\n')
    pbsdsh.chmod(0o700)
    nodes = folder / "nodefile"
    nodes.write_text("".join(f"{line}\n" for line in node_file))
    return {
        "PBS_JOBID": "8.pbs-srv", "PBS_NODEFILE": str(nodes), "PBS_ENVIRONMENT": "PBS_INTERACTIVE", "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1", "PBS_JOBCOOKIE": "7FA586DC", "PBS_MOMPORT": "15003", "PBS_O_WORKDIR": str(folder),
        "HOME": str(home), "PATH": f"{folder}/bin:{os.environ['PATH']}", "STAND_IN_OUTPUT": str(folder / "by-mom"),
    }  # fmt: skip
