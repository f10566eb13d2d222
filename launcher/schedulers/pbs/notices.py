"""The patterns of the notices that PBS's MoM writes into the output of a job that it kills.

mom_main.c and the cgroups hook of OpenPBS print them.
"""

from __future__ import annotations

import re

from launcher.schedulers.notices import Form

FORMS: tuple[Form, ...] = (
    ("TIMEOUT", re.compile(r"=>> PBS: job killed: (walltime|cput) ")),
    ("OUT_OF_MEMORY", re.compile(r"=>> PBS: job killed: p?v?mem |^Cgroup mem(sw)? limit exceeded")),
)
