"""How a rank learns to exclude nodes: from its run's scheduler, and never from the environment of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.runs.directory import Run
from launcher.worker.stop import how_to_exclude
from tests.unit.plans import plan_of


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"scheduler": "slurm"}, "cluster.exclude=node3"),
        ({"scheduler": "slurm", "exclude": "node1"}, "\"cluster.exclude='node1,node3'\""),
        ({"scheduler": "pbs"}, "PBS cannot exclude nodes; name a resource of the good ones in cluster.chunk"),
        ({"scheduler": "sge"},
         "ask for a resource of the good ones (cluster.resources.hostname='!(node3|node7)')"),
        ({"scheduler": "local"}, ""),
    ],
)  # fmt: skip
def test_the_scheduler_of_the_run_tells_how_to_exclude_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, str], told: str
) -> None:
    run = Run.create(tmp_path / "run-1")
    run.write_record(plan_of(cluster=cluster), {}, {"launcher": "1", "token": "t"})
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(run.path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert how_to_exclude("node3") == told


def test_a_process_without_a_readable_run_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAUNCHER_RUN_DIR", raising=False)
    assert how_to_exclude("node3") == ""
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "0")
    assert how_to_exclude("node3") == ""
