"""Commands whose output goes to another program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.paths import PACKAGE
from tests.unit.cli.test_commands import make


@pytest.mark.parametrize(
    ("line", "unbuffered"),
    [
        *((line, "") for line in ("help --all", "--help", "status", "data", "workload=p2p dry_run=true")),
        # Printed line by line, as by a long text, it fails where the line is made.
        *((f"{command} a", "1") for command in ("post-mortem", "why", "status", "logs", "checkpoint list")),
    ],
)
def test_a_reader_that_has_seen_enough_is_no_error(line: str, unbuffered: str, tmp_path: Path) -> None:
    make(tmp_path, code=1, ranks=2, fault="ValueError: x")
    seen, written = os.pipe()
    os.close(seen)  # as `| head` does, sooner or later
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *line.split()], cwd=PACKAGE.parent, stdout=written, stderr=subprocess.PIPE,
        env={**os.environ, "LAUNCHER_RUNS_DIR": str(tmp_path / "runs"), "PYTHONUNBUFFERED": unbuffered}, text=True,
        check=False,
    )  # fmt: skip
    os.close(written)
    assert (done.returncode, done.stderr) == (0, "")
