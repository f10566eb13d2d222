"""The allocation that a shell is in already: whose it is, how many nodes it has, and what starts tasks on them.

| SLURM_JOB_ID | PBS_JOBID and PBS_NODEFILE | held by | tasks are started by |
|---|---|---|---|
| set | any | Slurm | srun |
| not set | both set | PBS | pbsdsh |
| not set | one is missing | nobody | |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.node.hostlist import hosts_of


@dataclass(frozen=True)
class Held:
    """An allocation: its nodes, and `srun` or `pbsdsh`."""

    nodes: int
    starter: str


def allocation(environ: Mapping[str, str]) -> Held | None:
    """The allocation that the environment tells of.

    Raises:
        ConfigError: its node file cannot be read.
    """
    if "SLURM_JOB_ID" in environ:
        return Held(int(environ.get("SLURM_JOB_NUM_NODES", "1")), "srun")
    if not environ.get("PBS_JOBID") or not (path := environ.get("PBS_NODEFILE")):
        return None
    try:
        return Held(len(hosts_of(Path(path).read_text())), "pbsdsh")
    except OSError as error:
        raise ConfigError(
            f"cluster=allocation: the node file of the PBS job cannot be read (PBS_NODEFILE={path}: "
            f"{error.strerror}): start the launcher on the job's first node"
        ) from None


def nodes(environ: Mapping[str, str]) -> int:
    """How many nodes a run gets by default; whether there is an allocation at all is asked later."""
    try:
        held = allocation(environ)
    except ConfigError:
        held = None
    return held.nodes if held else 1
