"""What a job asks PBS about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs.job_file import BEGUN
from launcher.schedulers.pbs import in_job

# qstat -f, OpenPBS 23.06.06
QSTAT = """\
Job Id: 7.pbs-srv
    Job_Name = ddp
    resources_used.walltime = 00:00:00
    job_state = R
    Resource_List.ncpus = 2
    Resource_List.place = scatter
    Resource_List.select = 2:ncpus=1:mpiprocs=1:ompthreads=1
    Resource_List.walltime = {}
    stime = Mon Nov 30 17:40:32 2026
"""


@pytest.mark.parametrize(
    ("qstat", "left"),
    [
        (QSTAT.format("00:30:00"), 1795.0),
        (QSTAT.format("240:00:01"), 863996.0),
        (QSTAT.replace("    Resource_List.walltime = {}\n", ""), None),
        ("", None),
    ],
)
def test_the_wall_time_is_the_one_that_the_job_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qstat: str, left: float | None
) -> None:
    """qalter, a site's hook and min_walltime change the one that was asked for."""
    program = tmp_path / "qstat"
    program.write_text(f"#!/bin/bash\n[ \"$*\" = '-f 7.pbs-srv' ] && /bin/cat <<'END'\n{qstat}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(in_job, "uptime", lambda: 1005.0)
    environ = {"PBS_JOBID": "7.pbs-srv", "PATH": str(tmp_path), BEGUN: "1000.0"}
    assert in_job.seconds_left(environ) == left


def test_without_qstat_it_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "none"))
    assert in_job.seconds_left({"PBS_JOBID": "7.pbs-srv", BEGUN: "1000.0"}) is None
