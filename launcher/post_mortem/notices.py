"""What schedulers write into the output of a job that they end. Pure.

It stays when accounting is off and history is forgotten. The words are slurmstepd's and srun's (Slurm 20.11 to 24,
slurmstepd/mgr.c, jobacct_common) and PBS's MoM (mom_main.c, its cgroups hook).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.units import parse_size

# The state, in Slurm's words, that each stands for; the first that fits a line counts.
_WORDS = (
    ("TIMEOUT", r"DUE TO TIME LIMIT|=>> PBS: job killed: (walltime|cput) "),
    ("PREEMPTED", r"DUE TO PREEMPTION"),
    ("NODE_FAIL", r"DUE TO NODE FAILURE|srun: error: Node failure on"),
    ("REQUEUED", r"DUE TO JOB REQUEUE"),
    ("OUT_OF_MEMORY", r"[Dd]etected \d+ oom[-_]kill event|exceeded memory limit|Exceeded (job|step) memory limit"
                      r"|task \d+: Out Of Memory|=>> PBS: job killed: p?v?mem |Cgroup mem(sw)? limit exceeded"
                      r"|[Mm]emory cgroup out of memory|Out of memory: Killed process"),
    ("CANCELLED", r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*"),
)  # fmt: skip
_NOTICES = tuple((word, re.compile(pattern)) for word, pattern in _WORDS)
_OURS = re.compile(r"slurmstepd|srun: error|=>> PBS|^Cgroup |kernel|[Oo]ut of memory")
_AMOUNTS = re.compile(r"(\d+)\s*([kmg]?)b?\)?\s*(?:>|exceeded limit|over)\s*(\d+)\s*([kmg]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class Notice:
    """One such line.

    Attributes:
        word: the state of the job, in Slurm's words.
        line: itself.
        used, limit: bytes, where it tells them.
    """

    word: str
    line: str
    used: int | None = None
    limit: int | None = None


def find(lines: Iterable[str]) -> tuple[Notice, ...]:
    """The notices among the lines of an output, in their order."""
    found = []
    for line in lines:
        if _OURS.search(line):
            for word, pattern in _NOTICES:
                if pattern.search(line):
                    amounts = _AMOUNTS.search(line) if word == "OUT_OF_MEMORY" else None
                    used, limit = (
                        (parse_size(amounts[1] + amounts[2]), parse_size(amounts[3] + amounts[4]))
                        if amounts and int(amounts[1]) and int(amounts[3])
                        else (None, None)
                    )
                    found.append(Notice(word, line.strip(), used, limit))
                    break
    return tuple(found)


def word_of(notices: Iterable[Notice]) -> str:
    """What they say of the job, in one word: the most special one, else the first; empty: nothing."""
    words = [notice.word for notice in notices]
    order = ("OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "REQUEUED", "CANCELLED")
    return next((word for word in order if word in words), "")
