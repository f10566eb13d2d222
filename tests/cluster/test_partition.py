"""Agents on three nodes whose network is cut: who continues, who waits, and who comes back. Needs root and `ip`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import warm_python
from tests.cluster.namespaces import Namespaces
from tests.launch import Launcher

PATIENCE = 120.0  # seconds for anything that is to happen; nobody waits for it
TEMPLATE = """{{% extends "local.sh.j2" %}}
{{% block run %}}
python3 - "$LAUNCHER_RUN_DIR/job.json" <<'END'
import json, sys
job = json.load(open(sys.argv[1]))
job["start"] = ["{python}", "-m", "tests.cluster.namespaces", "{prefix}"]
json.dump(job, open(sys.argv[1], "w"))
END
{{{{ super() }}}}
{{% endblock %}}
"""

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.backend("local", "network namespaces"),
]


class Cut:
    """A run on three nodes whose network a test cuts."""

    def __init__(self, launcher: Launcher, network: Namespaces) -> None:
        self.launcher, self.network = launcher, network

    def round(self, number: int) -> dict[str, Any]:
        """Waits for the first step of a round, and returns the record that the round's leader has written."""
        path = self.launcher.last().path
        self.launcher.until(
            lambda: (path / "chaos" / f"first-{number}").exists(), f"a step of round {number}", PATIENCE
        )
        (claim,) = path.glob(f"attempts/*/rounds/{number}.json")
        return dict(json.loads(claim.read_text()))

    def members(self, number: int) -> tuple[int, list[int]]:
        """Returns the index of a round's leader, and the indices of all its members."""
        values = self.round(number)
        return values["leader"], [member["index"] for member in values["members"]]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.launcher.last().attempts()[-1].events() if event["event"] == kind]

    def alone(self, node: int) -> None:
        """Waits until no rank runs on a node, and checks that its agent still does."""
        path = self.launcher.last().path / "chaos"

        def ranks() -> list[int]:
            rows = [json.loads(file.read_text()) for file in path.glob("rank-*")]
            return [row["pid"] for row in rows if row["pid"] in self.network.pids(node)]

        self.launcher.until(lambda: not ranks(), f"no rank runs on node {node}", PATIENCE)
        assert self.network.pids(node), "its agent waits to come back"


def test_what_is_cut_off_is_lost_and_comes_back(tmp_path: Path, network: Namespaces) -> None:
    """The shared folder stays: what agents cannot tell each other they find there."""
    (tmp_path / "three.sh.j2").write_text(TEMPLATE.format(python=warm_python.python(), prefix=network.prefix))
    launcher = Launcher(tmp_path / "runs", {"COUNTING_STEPS": "1000000", "COUNTING_STEP_TIME": "0.05"})
    done = launcher.submit(
        "workload=collective", "workload.entry=tests.chaos.counting:main", "nodes=3", "min_nodes=2", "wait=false",
        "launch.heartbeat=2", "resume.how=never", f"cluster.template={tmp_path}/three.sh.j2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = Cut(launcher, network)
    try:
        assert run.members(0) == (0, [0, 1, 2])

        network.pull(2)
        assert run.members(1) == (0, [0, 1])
        run.alone(2)
        network.plug(2)
        assert run.members(2) == (0, [0, 1, 2])

        network.pull(0)
        assert run.members(3) == (1, [1, 2]), "the lowest that is left leads"
        run.alone(0)
        network.plug(0)
        assert run.members(4) == (1, [1, 0, 2]), "who leads goes on doing so"

        network.pull(2)
        network.kill(2)  # its connection stays half-open: nobody hears of its end
        assert run.members(5) == (1, [1, 0])
        lost = [(event["code"], event.get("seconds"), event["round"]) for event in run.events("restart")]
        # The leader that was cut off may also have told of one of the others before it missed both
        assert {("node_silent", 2, 1), ("node_silent", 2, 5)} <= {*lost}, lost
        assert not list(launcher.last().path.glob("attempts/*/exit_code"))
    finally:
        launcher("cancel", "latest")
