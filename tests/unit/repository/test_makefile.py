"""What `make` says and returns where a part of it fails or something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.launch import ROOT

# In place of python, and of bash for tests/setup_debian.sh.
PYTHON = '#!/bin/sh\necho "$*" >>"$CALLS"\ncase "$*" in *--ignore=*) exit $REST ;; *) exit $UNIT ;; esac\n'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="this machine has no make")


@pytest.mark.parametrize(("unit", "rest"), [(0, 0), (1, 0), (0, 1), (1, 5)])
def test_each_part_runs_and_a_failure_of_any_is_the_exit_status(unit: int, rest: int, tmp_path: Path) -> None:
    for name, text in {"python": PYTHON, "bash": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls), "UNIT": str(unit), "REST": str(rest)}
    done = subprocess.run(
        ["make", "--old-file=lint", "test", f"RUN={tmp_path}/python"], cwd=ROOT, env={**os.environ, **own},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == (unit == rest == 0), done.stderr
    first, second = calls.read_text().splitlines()
    assert first.endswith(" tests/unit tests/golden")
    assert second.endswith(" --ignore=tests/unit --ignore=tests/golden")
    assert ("The unit tests failed, too" in done.stdout) == (unit != 0)


def test_without_any_python_its_tests_fail() -> None:
    done = subprocess.run(["make", "test-python", "PYTHONS="], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "There is no Python 3.10 to 3.13: looked for /usr/bin/python3" in done.stderr
