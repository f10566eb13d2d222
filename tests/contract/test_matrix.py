"""The matrix of p2p finds a node with a bad link, and prints the command that leaves it out."""

from __future__ import annotations

import json
import re

import pytest

from tests.launch import Launcher


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)  # the only one with four nodes of different names
def test_a_node_with_a_bad_link_is_named_with_the_override_that_excludes_it(launcher: Launcher) -> None:
    result = launcher.run(
        "workload=p2p", "nodes=4", "workload.entry=tests.chaos.slow_node:main", "workload.pattern=matrix",
        "workload.sizes=[1K,64K]", "workload.window=2", "workload.iterations=1", "workload.slow=0.3",
        "workload.slow_latency=10",
    )  # fmt: skip
    assert result.code == 0, result.output
    written = json.loads((result.run.path / "results.json").read_text())
    assert written["complete"] and written["matrix"]["suspects"] == ["node3"], result.output
    told = re.search(r"without them: (cluster\.exclude=\S+)", result.output)
    assert told, result.output
    shown = launcher.submit("workload=p2p", "nodes=3", "dry_run=true", told[1])
    assert re.search(r"#SBATCH --exclude=node3$", shown.stdout, re.MULTILINE), shown.stdout + shown.stderr
