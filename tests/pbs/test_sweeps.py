"""Sweeps on PBS: what only PBS makes difficult. What every backend does is in tests/contract/test_sweeps.py."""

from __future__ import annotations

from launcher.runs import lookup
from launcher.runs.history import journal_events
from tests.launch import Launcher
from tests.pbs.pbs_cluster import PbsCluster

FINE = ("-m", "workload=collective", "workload.entry=tests.chaos.faults:fine")


def test_arrays_are_split_where_the_site_says(stand_in: PbsCluster, stand_in_launcher: Launcher) -> None:
    """And one point alone is no array, of which PBS has none; each array has its share of what may run."""
    stand_in.set(max_array_size=2, frozen=True)
    done = stand_in_launcher.submit(*FINE, "seed=range(5)", "sweep.parallelism=3", "wait=false")
    assert done.returncode == 0, done.stdout + done.stderr
    (sweep,) = lookup.all_sweeps(stand_in_launcher.runs_dir)
    assert [each.points for each in sweep.submissions()] == [(0, 1), (2, 3)]
    assert stand_in.submissions() == 3
    jobs = [journal_events(sweep.run(index))[-1]["job"] for index in range(5)]
    numbers = [job.partition(".")[0] for job in jobs]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] != numbers[4]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1", "0", "1", ""]
    ranges = [
        line
        for path in sorted(sweep.path.glob("arrays/*.sh"))
        for line in path.read_text().splitlines()
        if "PBS -J" in line
    ]
    assert ranges == ["#PBS -J 0-1%1", "#PBS -J 0-1%1"]
