"""Every scheduler behind ssh: its runs are submitted, shown, followed, cancelled and resumed from another machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import schedulers
from tests.launch import Launcher, until
from tests.remote.conftest import require_sshd
from tests.remote.site import Laptop, login_node

SCRIPT = """
import os, sys, time
print("ranks", os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def laptop(launcher: Launcher, tmp_path: Path) -> Iterator[Laptop]:
    require_sshd()
    (cluster,) = (word.partition("=")[2] for word in launcher.overrides if word.startswith("cluster="))
    with login_node(tmp_path / "node", launcher.environment, prefix=launcher.prefix) as node:
        made = Laptop(tmp_path / "laptop", node, cluster)
        (made.code / "train.py").write_text(SCRIPT)
        yield made
        made.close()


@schedulers.detached(never=("allocation", "third"))
def test_runs_of_a_cluster_behind_ssh(launcher: Launcher, laptop: Laptop) -> None:
    size = ["cluster=hpc", "nodes=2", *(word for word in launcher.overrides if not word.startswith("cluster="))]

    def states() -> dict[str, str]:
        return {row["run"]: row["state"] for row in json.loads(laptop("status", "--json").stdout)}

    def run_id(printed: str) -> str:
        return re.search(r"^(?:run|sweep) +([\w-]+)", printed, re.MULTILINE)[1]  # type: ignore[index]

    done = laptop("run", "train.py", *size, "wait=true", "--", "a b")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1] ranks 2 a b" in done.stdout
    failed = laptop("run", "train.py", *size, "wait=true", "--", "fail")
    assert failed.returncode in (1, 93), failed.stdout
    assert "post-mortem" in failed.stdout + failed.stderr
    shown = laptop("post-mortem", "latest")
    assert (shown.returncode, "exited with code 3" in shown.stdout) == (0, True), shown.stdout

    begun = laptop("run", "train.py", *size, "--", "wait")
    run = run_id(begun.stdout)
    until(lambda: "ranks 2" in laptop("logs", run).stdout, "the start")
    assert states()[run] == "running"
    assert laptop("cancel", run).returncode == 0
    until(lambda: states()[run] == "cancelled", "the end")
    assert laptop("resume", run, "wait=false", "--", "again").returncode == 0
    assert laptop("wait", run).returncode == 0
    assert "[0] ranks 2 again" in laptop("logs", run, "--attempt", "1").stdout

    sweep = laptop("-m", "run", "train.py", *size, "workload.flags.lr=1,2", "wait=true")
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert states()[run_id(sweep.stdout)] == "2/2 done"
