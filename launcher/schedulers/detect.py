"""Whose qsub is it? PBS, Torque, Grid Engine and Slurm all install a command of that name.

| what is found | it is |
|---|---|
| no qsub on PATH | nobody's |
| a script that mentions Slurm | Slurm's wrapper around sbatch |
| `qsub --version` says `pbs_version = 23.06.06` | PBS (OpenPBS, PBS Pro) |
| it says `Version: 6.1.2` and a commit | Torque |
| it does not know the option, and its help begins with a version of Grid Engine | Grid Engine |
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

from launcher.schedulers import command


class Kind(Enum):
    """Whose qsub it is."""

    NONE = "no qsub"
    PBS = "PBS"
    SLURM = "Slurm's wrapper around sbatch"
    TORQUE = "Torque"
    GRID_ENGINE = "Grid Engine"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Qsub:
    """A qsub: whose it is, where, its version, and what showed it."""

    kind: Kind
    path: str = ""
    version: str = ""
    evidence: str = ""

    def problem(self) -> str | None:
        """Why no PBS job can be submitted with it, and what to do; None when one can."""
        if self.kind is Kind.PBS:
            return None
        if self.kind is Kind.NONE:
            return "qsub is not on this machine's PATH: submit from a login node of the PBS cluster"
        if self.kind is Kind.UNKNOWN:
            return f"{self.path} is not PBS's qsub, and nobody's that is known ({self.evidence})"
        what = f"{self.path} is not PBS's qsub but {self.kind.value} ({self.evidence})"
        if self.kind is Kind.SLURM:
            return f"{what}: use cluster=slurm"
        return f"{what}, which is not supported: put the PBS commands in front of it on PATH, if there are any"


def detect() -> Qsub:
    """The qsub on PATH."""
    path = shutil.which("qsub")
    return Qsub(Kind.NONE) if path is None else _look(path, os.stat(path).st_mtime_ns)


@functools.cache
def _look(path: str, changed: int) -> Qsub:
    def run(*arguments: str) -> str:
        try:
            done = command.run([path, *arguments], timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return f"{done.stdout}\n{done.stderr}"

    try:
        with open(path, "rb") as file:
            beginning = file.read(8192)
    except OSError:  # it can be run and not read
        beginning = b""
    return judge(path, beginning, run)


def judge(path: str, beginning: bytes, run: Callable[..., str]) -> Qsub:
    """Whose a qsub is. Pure but for `run`.

    Args:
        path: where it is.
        beginning: its first bytes.
        run: calls it with arguments and returns all that it prints.
    """
    if beginning.startswith(b"#!") and re.search(rb"slurm|sbatch", beginning, re.IGNORECASE):
        return Qsub(Kind.SLURM, path, evidence="a script that calls Slurm")
    said = run("--version")
    if match := re.search(r"pbs_version\s*=\s*(\S+)", said):
        return Qsub(Kind.PBS, path, match[1], match[0])
    if match := re.search(r"^Version:\s*(\d\S*)", said, re.MULTILINE):
        return Qsub(Kind.TORQUE, path, match[1], match[0])
    grid_engine = re.compile(r"^(?:SGE|UGE|OGS|GE|AGE)(?:/GE)?\s+([\w.]+)", re.MULTILINE)
    if match := grid_engine.search(said) or grid_engine.search(run("-help")):
        return Qsub(Kind.GRID_ENGINE, path, match[1], match[0])
    first = next((line.strip() for line in said.splitlines() if line.strip()), "nothing")
    return Qsub(Kind.UNKNOWN, path, evidence=f"`qsub --version` says {first!r}")
