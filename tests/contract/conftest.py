"""The fixture `launcher`: a test names its schedulers with `schedulers.on`.

Tests of features that only cluster=allocation has: tests/cluster/test_allocation.py, tests/pbs/test_allocation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch import ROOT, Launcher

NODES = ("node1", "node2")
THIRD = ROOT / "tests/fakes/third_scheduler"


@pytest.fixture
def launcher(
    request: pytest.FixtureRequest, tmp_path: Path, ran_against: Callable[[str, str], None]
) -> Iterator[Launcher]:
    """The launcher's command line with one of the schedulers; a cluster is idle again after the test."""
    if request.param == "local":
        ran_against("local", "this machine")
        yield Launcher(tmp_path / "runs", {}, ["cluster=local"])
        return
    if request.param == "third":
        ran_against("third", "a scheduler of another package, with its queue in a folder")
        yield third(tmp_path)
        return
    if request.param == "pbs":
        pbs = request.getfixturevalue("pbs")
        ran_against("pbs", pbs.against)
        yield Launcher(tmp_path / "runs", pbs.environment, ["cluster=pbs"], hosts=pbs.hosts)
        pbs.reset()
        return
    if request.param == "sge":
        sge = request.getfixturevalue("sge")
        ran_against("sge", sge.against)
        always = ["cluster=sge", "cluster.parallel_environment=nodes"]
        yield Launcher(tmp_path / "runs", sge.environment, always, sge.on_head, sge.hosts)
        sge.reset()
        return
    slurm = request.getfixturevalue("slurm")
    environment = {name: value for name, value in slurm.env().items() if name == "SLURM_CONF"}
    if request.param == "slurm":
        ran_against("slurm", f"Slurm {slurm.version()}, 4 real nodes")
        yield Launcher(tmp_path / "runs", environment, ["cluster=slurm"], hosts=NODES)
    else:
        ran_against("allocation", f"salloc of Slurm {slurm.version()}, 2 real nodes")
        salloc = ["salloc", "--quiet", "--nodes=2", "--cpus-per-task=2"]
        yield Launcher(tmp_path / "runs", environment, ["cluster=allocation"], salloc, NODES)
    slurm.reset()


def third(folder: Path) -> Launcher:
    """Returns the launcher with a scheduler of another package, which it finds by an entry point and a profile.

    Args:
        folder: the directory for the runs and for the scheduler's queue.
    """
    environment = {"PYTHONPATH": f"{ROOT}:{THIRD / 'installed'}", "THIRD_QUEUE": str(folder / "queue")}
    found = Launcher(folder / "runs", environment, ["cluster=third"])
    profile = found.config_dir / "cluster" / "third.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(
        "defaults: [/hydra/schema/cluster/third@_here_, _self_]\nname: third\nscheduler: third\nlane: fast\n"
    )
    return found
