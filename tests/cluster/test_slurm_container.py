"""Ranks in containers on two nodes of a real Slurm, with the stand-in of tests/apptainer for apptainer itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.launch import PYTHON, ROOT, Launcher


def test_two_nodes_meet_from_within_their_containers(slurm: Any, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path / "runs", {"SLURM_CONF": slurm.env()["SLURM_CONF"]}, ["cluster=slurm"])
    image = tmp_path / "torch.sif"
    image.touch()
    result = launcher.run(
        "workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=2", "procs_per_node=2",
        f"env.container={image}", f"env.python={PYTHON}", f"env.setup=['export PATH={ROOT}/tests/apptainer:$PATH']",
        "+cluster.environment.API_TOKEN=very-secret", LD_LIBRARY_PATH="/of/the/host",
    )  # fmt: skip
    slurm.reset()
    assert result.code == 0, result.output
    met = [event for event in result.run.attempts()[0].events() if event["event"] == "met"]
    assert {(event["host"], event["ranks"]) for event in met} == {("node1", 4), ("node2", 4)}
    words = Path(f"{image}.words").read_text().splitlines()
    assert len(words) == 4
    assert sum(" launcher.agent" in line for line in words) == 2  # one agent on each node; before that it is asked
    assert all(f"--pwd {ROOT} {image} sh -c " in line and f" {PYTHON} " in line for line in words)
    bound = [bind.split()[0] for bind in words[0].split("--bind ")[1:]]
    assert any(f"{tmp_path}/runs".startswith(each) for each in bound)  # or a folder around it (TMPDIR=/tmp)
    assert "very-secret" not in "".join(words)
