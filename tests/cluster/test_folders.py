"""Nodes that do not see the same folders. Needs root, for mount namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import warm_python
from tests.launch import Launcher

# Where the folder of a task is missing Slurm starts it in /tmp.
HIDES = """[ "$LAUNCHER_NODE" = 0 ] || {{ mount -t tmpfs none {hidden} && cd /tmp; }}; exec "$@\""""
# The command of each node is run in a mount namespace of its own.
TEMPLATE = """{{% extends "local.sh.j2" %}}
{{% block run %}}
python3 - "$LAUNCHER_RUN_DIR/job.json" <<'END'
import json, sys
job = json.load(open(sys.argv[1]))
job["node"] = ["unshare", "--mount", "sh", "-c", {hides!r}, "sh", *job["node"]]
json.dump(job, open(sys.argv[1], "w"))
END
{{{{ super() }}}}
{{% endblock %}}
"""

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.backend("local", "mount namespaces"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mount namespaces need root"),
]


def test_a_node_that_does_not_see_the_working_folder_is_named(tmp_path: Path) -> None:
    hidden = tmp_path / "home"
    (hidden / "work").mkdir(parents=True)
    (hidden / "work" / "train.py").write_text("print('trained')\n")
    (tmp_path / "two.sh.j2").write_text(TEMPLATE.format(hides=HIDES.format(hidden=hidden)))
    launcher = Launcher(tmp_path / "runs", {})
    done = subprocess.run(
        [
            warm_python.python(), "-m", "launcher", "run", "train.py", "nodes=2",
            f"cluster.template={tmp_path}/two.sh.j2", "wait=true",
        ],
        cwd=hidden / "work", env=launcher.environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    words = f"its working folder {hidden}/work cannot be entered there: submit in a folder that all nodes share"
    assert done.returncode == 93, done.stdout + done.stderr
    assert words in done.stderr
    fault, *_ = [event for event in launcher.last().attempts()[-1].events() if event["event"] == "fault"]
    assert (fault["error"], fault["code"], fault["ends_with"]) == (words, "no_folder", 93)
    assert fault["host"]
