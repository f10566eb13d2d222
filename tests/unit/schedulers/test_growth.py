"""What is read of a scheduler's answer costs as much for each job, node or host in a long answer as in a short one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launcher.schedulers import topology
from launcher.schedulers.pbs import client as pbs
from launcher.schedulers.pbs import client as pbs_resources
from launcher.schedulers.sge import client as sge
from launcher.schedulers.sge import client as sge_resources
from launcher.schedulers.slurm import client as slurm
from launcher.schedulers.slurm import limits as slurm_limits
from launcher.units import parse_ranges
from tests.unit.operations import operations

QSTAT = (
    "{0}[].pbs-srv  me  workq  job-{0}  123  1  4  2gb  01:00  Q  --\n   Not Running: Insufficient amount of resource\n"
)
QSTAT_JSON = (
    '"{0}.pbs":{{\n  "Job_Name":"job-{0}",\n  "comment":"it says \\"no\\"",\n  "Priority":+5,\n'
    '  "Variable_List":{{\n  "A":"1,\n2",\n  "B":inf\n  }}\n}}'
)
QACCT = "======\nqname all.q\njobnumber {0}\ntaskid undefined\nfailed 0\nexit_status 0\nru_minflt 7\n"
JOB_LIST = "<job_list><JB_job_number>{0}</JB_job_number><state>qw</state><tasks>1-3</tasks></job_list>"


def joined(text: str, between: str = "", begin: str = "", end: str = "") -> Callable[[int], str]:
    """Returns what makes an answer about a number of things."""
    return lambda count: begin + between.join(text.format(number) for number in range(count)) + end


@pytest.mark.parametrize(
    ("parse", "answer", "things"),
    [
        (slurm.parse_jobs, joined(f"{{0:<64}}{'PENDING':<32}{'Resources':<64}{'launcher-1':<256}{'1:00:00':<32}\n"), 1),
        (slurm.parse_counts, joined("gpu,cpu|normal\n"), 0),
        (slurm.parse_origins, joined("{0}|launcher-1|/runs/{0}/script.sh\n"), 1),
        (slurm.parse_accounting, joined("{0}|2026-11-21T12:00:00|COMPLETED|None|launcher-1\n"), 1),
        (slurm_limits.parse_partitions, joined("p{0}|1-00:00:00|1-8|4|64|256000|gpu:a100:4(S:0-3)\n"), 1),
        (slurm.parse_nodes, joined("node{0}|64|256000|idle|gpu:a100:4|gpu|none\n"), 0),
        (pbs.parse_jobs, joined(QSTAT), 1),
        (pbs.parse_counts, joined(QSTAT), 0),
        (lambda text: pbs.section(text, "Jobs"), joined(QSTAT_JSON, ",\n", '{"Jobs":{\n', "\n}}\n"), 1),
        (pbs_resources.parse_nodes, joined("node{0}\n     state = free\n     resources_available.ncpus = 64\n\n"), 0),
        (sge.parse_jobs, joined(JOB_LIST, begin="<job_info>", end="</job_info>"), 3),
        (sge.parse_counts, joined(JOB_LIST, begin="<job_info>", end="</job_info>"), 0),
        (sge.records, joined(QACCT), 1),
        (sge_resources.attributes, joined("key{0} value\n"), 1),
        (topology.expand, joined("rack{0}n[01-03,7]", ","), 4),
        (topology.expand, lambda count: f"node[{','.join(map(str, range(0, 2 * count, 2)))}]", 1),
        (topology.hosts_in_node_file, joined("node{0}\n" * 3), 1),
        (sge.parse_elements, joined("{0}", ","), 1),
        (parse_ranges, joined("{0}", ","), 1),
    ],
)  # fmt: skip
def test_an_answer_costs_what_is_in_it(
    parse: Callable[[str], object], answer: Callable[[int], str], things: int
) -> None:
    few, many = answer(30), answer(300)
    parse(few)
    assert operations(lambda: parse(many)) < 15 * operations(lambda: parse(few))
    if things:
        assert len(parse(many)) == 300 * things  # type: ignore[arg-type]
