"""What schedulers write into the output of a job that they end. Pure.

It stays when accounting is off and history is forgotten. The words are slurmstepd's and srun's (Slurm 20.11 to 26.05:
slurmstepd/req.c, jobacct_gather.c, task_cgroup_memory.c, srun/launch.c) and PBS's MoM (mom_main.c, its cgroups hook).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.units import parse_size

# slurmstepd begins its lines with its name, and with the time since 25.05 (from 23.11 on with format_stderr in
# LogTimeFormat, which has eight forms).
_STEPD = r"(slurmstepd[\w.-]*:|\[[^\[\]]+\]) error: "
_ENDED = _STEPD + r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ "
# The state, in Slurm's words, that each stands for; the first that fits a line counts.
_WORDS = (
    ("TIMEOUT", _ENDED + r"DUE TO TIME LIMIT|=>> PBS: job killed: (walltime|cput) "),
    ("PREEMPTED", _ENDED + r"DUE TO PREEMPTION"),
    ("NODE_FAIL", _ENDED + r"DUE TO NODE FAILURE|srun: error: Node failure on"),
    ("REQUEUED", _ENDED + r"DUE TO JOB REQUEUE"),
    ("OUT_OF_MEMORY", _STEPD + r"([Dd]etected \d+ oom[-_]kill event|\S+ exceeded memory limit"
                      r"|Exceeded (job|step) memory limit)"
                      r"|srun: error: .*tasks? [\d,-]+: Out Of Memory|=>> PBS: job killed: p?v?mem "
                      r"|^Cgroup mem(sw)? limit exceeded|[Mm]emory cgroup out of memory|Out of memory: Killed process"),
    # That of a step alone is printed for srun --kill-on-bad-exit as well (DUE TO TASK FAILURE since 25.05).
    ("CANCELLED", _STEPD + r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ (DUE to SIGNAL .+ )?\*\*\*"),
)  # fmt: skip
_NOTICES = tuple((word, re.compile(pattern)) for word, pattern in _WORDS)
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
