"""A snapshot, an activated environment and a secret in one run that is stopped and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm_python
from tests.launch import Launcher

SCRIPT = """\
import os, sys
from word import WORD
print(WORD, os.getcwd(), sys.prefix, os.environ["API_TOKEN"] == os.environ["EXPECTED"][::-1], sep="|")
sys.exit(75 if os.environ["LAUNCHER_ATTEMPT"] == "0" else 0)
"""


def test_a_run_goes_on_with_the_code_of_its_submission_in_its_environment_with_its_secret(tmp_path: Path) -> None:
    prefix = Path(sys.prefix)
    if not (prefix / "bin/activate").exists():
        pytest.skip("this Python is of no environment")
    work = tmp_path / "repository"
    work.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)
    (work / "train.py").write_text(SCRIPT)
    (work / "word.py").write_text("WORD = 'first'\n")
    launcher = Launcher(tmp_path / "runs", {"EXPECTED": "terces-yrev"})

    def run(*words: str, **environment: str) -> str:
        done = subprocess.run(
            [warm_python.python(), "-m", "launcher", *words], cwd=work, env={**launcher.environ, **environment},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout

    first = run(
        "workload=program", "workload.script=train.py", "run_id=one", "env.snapshot=true", f"env.activate={prefix}",
        "+cluster.environment.API_TOKEN=very-secret", "resume.how=never",
    )  # fmt: skip
    code = tmp_path / "runs/one/code"
    assert f"first|{code}|{prefix}|True" in first
    (work / "word.py").write_text("WORD = 'second'\n")
    assert "API_TOKEN" in run("resume", "one")  # it is in no record
    again = run("resume", "one", API_TOKEN="very-secret")
    assert f"first|{code}|{prefix}|True" in again
    assert "one is done" in again
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if b"very-secret" in path.read_bytes()]
