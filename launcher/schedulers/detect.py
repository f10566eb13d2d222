"""Detects which scheduler the qsub on PATH belongs to: PBS, Torque, Grid Engine and Slurm all install one.

| what is found | it is |
|---|---|
| no qsub on PATH | none |
| a script that mentions Slurm | Slurm's wrapper around sbatch |
| `qsub --version` prints `pbs_version = 23.06.06` | PBS (OpenPBS, PBS Pro) |
| `qsub --version` prints `Version: 6.1.2` and a commit | Torque |
| qsub does not know `--version`, and its help begins with a version of Grid Engine | Grid Engine |
| anything else | unknown |
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from launcher.schedulers import run_command


class QsubKind(Enum):
    """Which scheduler a qsub belongs to. The value is its name in messages."""

    NONE = "no qsub"
    PBS = "PBS"
    SLURM = "Slurm's wrapper around sbatch"
    TORQUE = "Torque"
    GRID_ENGINE = "Grid Engine"
    UNKNOWN = "unknown"


# The value of `cluster` to suggest for each supported scheduler.
CLUSTERS = {QsubKind.PBS: "pbs", QsubKind.SLURM: "slurm", QsubKind.GRID_ENGINE: "sge"}


@dataclass(frozen=True)
class Qsub:
    """A qsub command: its scheduler, path and version, and the evidence for this scheduler."""

    kind: QsubKind
    path: str = ""
    version: str = ""
    evidence: str = ""

    def problem(self, wanted: QsubKind) -> str | None:
        """Returns why this qsub cannot submit to the wanted scheduler and what to do, or None if it can."""
        if self.kind is wanted:
            return None
        if self.kind is QsubKind.NONE:
            return f"qsub is not on this machine's PATH: submit from a login node of the {wanted.value} cluster"
        if self.kind is QsubKind.UNKNOWN:
            return f"{self.path} is not {wanted.value}'s qsub, and nobody's that is known ({self.evidence})"
        what = f"{self.path} is not {wanted.value}'s qsub but {self.kind.value} ({self.evidence})"
        if cluster := CLUSTERS.get(self.kind):
            return f"{what}: use cluster={cluster}"
        do = f"put the {wanted.value} commands in front of it on PATH, if there are any"
        return f"{what}, which is not supported: {do}"


def detect() -> Qsub:
    """Returns the qsub on PATH; its kind is Kind.NONE if PATH has no qsub."""
    path = shutil.which("qsub")
    return Qsub(QsubKind.NONE) if path is None else _look(path, os.stat(path).st_mtime_ns)


@functools.cache
def _look(path: str, changed: int) -> Qsub:
    def run(*arguments: str) -> str:
        try:
            done = run_command.run([path, *arguments], timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return f"{done.stdout}\n{done.stderr}"

    try:
        with open(path, "rb") as file:
            beginning = file.read(8192)
    except OSError:  # executable, but not readable
        beginning = b""
    return judge(path, beginning, run)


def judge(path: str, beginning: bytes, run: Callable[..., str]) -> Qsub:
    """Determines the scheduler of a qsub by this module's table; `beginning`: the first bytes of its file."""
    if beginning.startswith(b"#!") and re.search(rb"slurm|sbatch", beginning, re.IGNORECASE):
        return Qsub(QsubKind.SLURM, path, evidence="a script that calls Slurm")
    output = run("--version")
    if match := re.search(r"pbs_version\s*=\s*(\S+)", output):
        return Qsub(QsubKind.PBS, path, match[1], match[0])
    if match := re.search(r"^Version:\s*(\d\S*)", output, re.MULTILINE):
        return Qsub(QsubKind.TORQUE, path, match[1], match[0])
    grid_engine = re.compile(r"^(?:SGE|UGE|OGS|GE|AGE)(?:/GE)?\s+([\w.]+)", re.MULTILINE)
    if match := grid_engine.search(output) or grid_engine.search(run("-help")):
        return Qsub(QsubKind.GRID_ENGINE, path, match[1], match[0])
    first = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
    return Qsub(QsubKind.UNKNOWN, path, evidence=f"`qsub --version` says {first!r}")
