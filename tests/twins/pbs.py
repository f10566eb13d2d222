"""A stand-in for OpenPBS that keeps a site's rules: queues and their routes, limits, and a submission hook."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from launcher.formatting import format_hours
from launcher.units import parse_time
from tests.pbs.pbs_cluster import PbsCluster
from tests.twins.rules import Pool, Rules

# HPE PALS, as far as a task sees it. All nodes are this machine.
MPIEXEC = """\
#!/bin/bash
# mpiexec -n TASKS [-ppn N | --ppn N] [-d N | --depth=N] [--cpu-bind WORD] COMMAND...: no environment goes on.
tasks=1 each=1
while :; do
  case "$1" in
    -n) tasks=$2; shift 2 ;;
    -ppn|--ppn) each=$2; shift 2 ;;
    -d|--cpu-bind) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
for rank in $(seq 0 $((tasks - 1))); do
  env -i PATH=/usr/bin:/bin PBS_NODEFILE="$PBS_NODEFILE" PBS_JOBID="$PBS_JOBID" PMI_SIZE=$tasks PMI_RANK=$rank \\
    PALS_RANKID=$rank PALS_LOCAL_RANKID=$((rank % each)) PALS_NODEID=$((rank / each)) PALS_LOCAL_SIZE=$each "$@" &
done
code=0
for _ in $(seq $tasks); do wait -n || code=$?; done
exit $code
"""


def queue(name: str, pool: Pool, inner: bool) -> dict[str, Any]:
    """A queue, as the stand-in has it."""
    most = {"walltime": pool.time and format_hours(parse_time(pool.time)), "nodect": pool.nodes, "ngpus": pool.gpus}
    least = {
        "walltime": pool.min_time and format_hours(parse_time(pool.min_time)), "nodect": pool.min_nodes,
        "ngpus": pool.min_gpus,
    }  # fmt: skip
    limits = {kind: {key: str(value) for key, value in values.items() if value is not None}
              for kind, values in (("most", most), ("least", least))}  # fmt: skip
    return {"name": name, **limits, "jobs": pool.jobs, "routes": list(pool.routes), "inner": inner}


class Twin:
    """The site's PBS. A context manager."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._folder = tempfile.TemporaryDirectory(prefix="twin-", dir="/tmp")
        self._pbs = PbsCluster(Path(self._folder.name) / "site")

    @property
    def environment(self) -> dict[str, str]:
        return self._pbs.environment

    def __enter__(self) -> Twin:
        rules, site = self.rules, self._pbs.__enter__()
        mpiexec = site.folder / "bin" / "mpiexec"
        mpiexec.write_text(MPIEXEC)
        mpiexec.chmod(0o755)
        inner = {name for pool in rules.pools.values() for name in pool.routes}
        site.set_queues(*(queue(name, pool, name in inner) for name, pool in rules.pools.items()))
        node = rules.node
        site.set(
            node={"ncpus": node.cpus, "ngpus": node.gpus, "mem": node.mem << 10}, totals=rules.totals,
            required=list(rules.wants), resources=["ngpus", *rules.resources],
            default_queue=next((name for name, pool in rules.pools.items() if pool.default), "none"),
        )  # fmt: skip
        return self

    def __exit__(self, *exception: object) -> None:
        self._pbs.__exit__(*exception)
        self._folder.cleanup()
