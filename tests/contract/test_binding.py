"""Ranks run on the CPUs that they were bound to, on every scheduler. They read their own masks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher import errors
from launcher.failures.codes import Unbound
from launcher.runs.events import Bound, every
from launcher.units import parse_ranges
from tests.contract.schedulers import local, on
from tests.launch import Launcher, Result
from tests.markers import ci

SHOWS = """\
import json, os, subprocess, sys
mask = sorted(os.sched_getaffinity(0))
child = subprocess.run([sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"], capture_output=True)
status = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("Cpus_allowed_list"))
print(json.dumps([mask, json.loads(child.stdout), status, os.environ.get("OMP_NUM_THREADS")]))
"""


def masks(result: Result) -> list[tuple[list[int], str | None]]:
    """Returns, for each rank, the CPUs that it and a process that it starts may use, and its OMP_NUM_THREADS."""
    assert result.code == 0, result.output
    found = []
    for rank in range(2):
        mask, child, status, threads = json.loads((result.run.attempts()[-1].logs / f"rank-{rank}.out").read_text())
        assert mask == child == sorted(parse_ranges(status))
        found.append((mask, threads))
    return found


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "shows.py").write_text(SHOWS)
    return f"workload.script={tmp_path}/shows.py"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is of nobody's own")
@on("local", ci=("slurm", "sge"))
@pytest.mark.parametrize("bind", [pytest.param("auto", marks=pytest.mark.slow), "core"])
def test_each_rank_has_the_cores_that_the_run_reports(launcher: Launcher, program: str, bind: str) -> None:
    result = launcher.run("workload=program", program, "procs_per_node=2", f"launch.bind={bind}")
    (told,) = every(result.run.attempts()[-1].events(), Bound)
    given = [sorted(parse_ranges(rank.cpus)) for rank in told.ranks]
    found = masks(result)
    assert [mask for mask, _ in found] == given
    if told.unbound:  # a job of one core
        assert (told.unbound, set(map(len, given))) == (Unbound("2 ranks and 1 core"), {1})
    else:
        allowed = parse_ranges(told.allowed)
        assert set(given[0]) | set(given[1]) <= set(allowed)
        if bind == "core":
            assert not set(given[0]) & set(given[1])
            assert [threads for _, threads in found] == ["1", "1"]
        elif len(allowed) == 2:  # nobody is left alone on a single core
            assert given == [list(allowed)] * 2


@local
@pytest.mark.parametrize("fork", [False, ci(True)])
def test_ranks_get_the_lists_of_a_map(launcher: Launcher, program: str, fork: bool) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    result = launcher.run(
        "workload=program", program, "procs_per_node=2", f"launch.bind=map:{last}:{first}", f"workload.fork={fork}",
        OMP_NUM_THREADS="3",
    )  # fmt: skip
    assert masks(result) == [([last], "3"), ([first], "3")]


@local
@pytest.mark.parametrize("keys", [ci(["launch=tasks"]), ["launch.bind=none"], ci(["procs_per_node=3"])])
def test_ranks_are_not_bound_if_that_is_disabled_or_impossible(
    launcher: Launcher, program: str, keys: list[str]
) -> None:
    if "procs" in keys[0] and len(os.sched_getaffinity(0)) >= 3:
        pytest.skip("there are as many cores as ranks")
    result = launcher.run("workload=program", program, *(keys if "procs" in keys[0] else ["procs_per_node=2", *keys]))
    assert [mask for mask, _ in masks(result)] == [sorted(os.sched_getaffinity(0))] * 2
    assert all(told.unbound for told in every(result.run.attempts()[-1].events(), Bound))


@local
def test_a_list_with_cpus_of_other_jobs_is_refused(launcher: Launcher, program: str) -> None:
    result = launcher.run("workload=program", program, "procs_per_node=2", "launch.bind=map:0:4095")
    assert result.code == errors.NO_RETRY
    assert "launch.bind gives local rank 1 the CPUs 4095, which this job may not use here" in result.output
