"""A real Grid Engine that keeps a site's rules: its complexes, and a verifier of submissions (jsv(1)).

Debian's version lacks two things of Altair's: `qsub -g GROUP`, which the twin's qsub takes off the command line, and
a resource of whole nodes, for which the verifier writes the parallel environment with one task on each node.
"""

from __future__ import annotations

import sys

from launcher.units import parse_time
from tests.sge.sge_cluster import SgeCluster
from tests.twins.rules import Rules

QSUB = """\
#!/bin/bash
# qsub -g GROUP ...: the group is the verifier's to judge.
words=()
while [ $# -gt 0 ]; do
  if [ "$1" = -g ]; then export TWIN_GROUP=$2; shift 2; else words+=("$1"); shift; fi
done
case "${{words[0]}}" in -help|--version) exec {real} "${{words[@]}}" ;; esac
exec {real} -jsv {verifier} "${{words[@]}}"
"""
VERIFIER = """\
#!{python} -IS
# The protocol is that of jsv(5): PARAM lines come before BEGIN, and changed ones are written before RESULT.
import os, sys
asked = {{}}
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "START":
        asked = {{}}
        print("STARTED", flush=True)
    elif word == "PARAM":
        name, _, value = rest.partition(" ")
        asked[name] = value
    elif word == "QUIT":
        break
    elif word == "BEGIN":
        wants = dict(each.partition("=")[::2] for each in asked.get("l_hard", "").split(",") if each)
        seconds = 0
        for part in wants.get("h_rt", "0").split(":"):
            seconds = seconds * 60 + int(part)
        nodes = next((wants.pop(name) for name in {resources} if name in wants), None)
        if not seconds:
            result = "REJECT Job is rejected. h_rt must be specified."
        elif seconds > {most}:
            result = "REJECT Job is rejected, h_rt can not be longer than {hours} hours"
        elif {wants_group} and "TWIN_GROUP" not in os.environ and seconds > 600:
            result = "REJECT Job is rejected, h_rt can not be longer than 10 mins with this group"
        elif nodes:
            print("PARAM l_hard " + ",".join(f"{{name}}={{value}}" for name, value in wants.items()))
            print("PARAM pe_name nodes", f"PARAM pe_min {{nodes}}", f"PARAM pe_max {{nodes}}", sep="\\n")
            result = "CORRECT"
        else:
            result = "ACCEPT"
        print("RESULT STATE", result, flush=True)
"""


class Twin(SgeCluster):
    """The site's Grid Engine. A context manager."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def start(self) -> Twin:
        super().start()
        self.set_gpus(self.rules.node.gpus)
        rows = "".join(f"{name} {name} INT <= YES NO 0 0\n" for name in self.rules.resources)
        self.load("-Mc", self.run("qconf", "-sc") + rows)
        verifier, real = self.folder / "verifier.sh", self.folder / "real-qsub"
        most = max(parse_time(pool.time) for pool in self.rules.pools.values() if pool.time)
        verifier.write_text(VERIFIER.format(
            python=sys.executable, most=most, hours=most // 3600, wants_group="group" in self.rules.wants,
            resources=list(self.rules.resources),
        ))  # fmt: skip
        qsub = self.folder / "bin" / "qsub"
        qsub.rename(real)
        qsub.write_text(QSUB.format(real=real, verifier=verifier))
        for file in (verifier, qsub):
            file.chmod(0o755)
        return self
