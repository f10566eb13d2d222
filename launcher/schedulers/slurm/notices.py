"""The patterns of the notices that Slurm writes into the output of a job that it kills.

slurmstepd and srun print them (20.11 to 26.05: slurmstepd/req.c, jobacct_gather.c, task_cgroup_memory.c,
srun/launch.c).
"""

from __future__ import annotations

import re

from launcher.schedulers.notices import Form

# slurmstepd's lines start with its name, or since 25.05 with the time (23.11 and later: with format_stderr in
# LogTimeFormat, which has eight forms).
_STEPD = r"(slurmstepd[\w.-]*:|\[[^\[\]]+\]) error: "
_AT = r"CANCELLED AT (?P<at>\S+) "
_ENDED = _STEPD + r"\*\*\* (JOB|STEP) \S+ ON \S+ " + _AT
_WORDS = (
    ("TIMEOUT", _ENDED + r"DUE TO TIME LIMIT"),
    ("PREEMPTED", _ENDED + r"DUE TO PREEMPTION"),
    ("NODE_FAIL", _ENDED + r"DUE TO NODE FAILURE|srun: error: Node failure on"),
    ("REQUEUED", _ENDED + r"DUE TO JOB REQUEUE"),
    ("OUT_OF_MEMORY", _STEPD + r"([Dd]etected \d+ oom[-_]kill event|\S+ exceeded memory limit"
                      r"|Exceeded (job|step) memory limit)"
                      r"|srun: error: .*tasks? [\d,-]+: Out Of Memory"),
    # JOB only: with srun --kill-on-bad-exit, slurmstepd prints the notice for a STEP (DUE TO TASK FAILURE since 25.05).
    ("CANCELLED", _STEPD + r"\*\*\* JOB \S+ ON \S+ " + _AT + r"(DUE to SIGNAL .+ )?\*\*\*"),
)  # fmt: skip
FORMS: tuple[Form, ...] = tuple((word, re.compile(pattern)) for word, pattern in _WORDS)
