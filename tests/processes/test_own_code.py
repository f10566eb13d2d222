"""The page about one's own code: its ten lines do nothing where there is no run of the launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import warm_python
from tests.launch import ROOT


def test_the_ten_lines_do_nothing_where_there_is_no_launcher_run(tmp_path: Path) -> None:
    """Under plain torchrun, or python with its variables, the script is what it was."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER")}
    environ |= {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [warm_python.python(), ROOT / "tests" / "examples" / "ten_lines.py", "--steps", "500"], cwd=tmp_path,
        env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 500 loss " in done.stdout
    assert list(tmp_path.iterdir()) == []
