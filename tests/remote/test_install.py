"""`site init --ssh`: the launcher is installed for a user who has nothing but a home folder and the system's Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.conftest import require_sshd
from tests.remote.site import Laptop, login_node

pytestmark = [pytest.mark.usefixtures("against"), pytest.mark.skipif(os.geteuid() != 0, reason="it makes a user")]
CI = bool(os.environ.get("CI"))
SYSTEM = Path("/usr/bin/python3")


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    require_sshd()
    if not CI and subprocess.run([SYSTEM, "-c", "import ensurepip, venv"], check=False, capture_output=True).returncode:
        pytest.skip("the system's Python makes no virtual environments: apt-get install python3-venv")
    user, home = f"far-{os.getpid()}", Path(f"/tmp/far-{os.getpid()}")
    subprocess.run(
        ["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", "--password", "*", user],
        check=True,
    )
    try:
        with login_node(tmp_path / "node", {}, user) as node:
            made = Laptop(tmp_path / "laptop", node)
            made.profile.unlink()
            yield made
            made.close()
    finally:
        subprocess.run(["userdel", "--remove", "--force", user], check=True, capture_output=True)


@pytest.fixture
def home(laptop: Laptop) -> Path:
    return Path(f"/tmp/far-{os.getpid()}")


@pytest.mark.ci
def test_a_cluster_is_set_up_from_here_and_a_run_is_planned_there(laptop: Laptop, home: Path) -> None:
    line = "export HELLO='from $HOME'"
    done = laptop("site", "init", "hpc", "--ssh", "login", "--python", str(SYSTEM), "--activate", line, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"({SYSTEM})" in done.stdout
    assert "launcher 0.1.0 in ~/.local/share/launcher/there/launcher" in done.stdout
    assert "missing  a profile there" in done.stdout  # it has no scheduler
    assert "launcher run train.py cluster=hpc" in done.stdout
    there = home / ".local/share/launcher"
    assert {path.name for path in there.iterdir()} > {"there"}
    assert not list(there.rglob("*.whl"))
    assert line in (there / "there/launcher").read_text()

    laptop.profile.write_text(laptop.profile.read_text() + "profile: local\n")
    shown = laptop("run", "train.py", "cluster=hpc", "dry_run=true")
    assert shown.returncode == 0, shown.stderr
    assert f"{home}/.local/share/launcher/runs/train-" in shown.stdout
    assert laptop("status").stdout.startswith("no runs")
    assert laptop("site", "login", "hpc").stdout == "logged in to login\n"

    again = laptop("site", "init", "hpc", "--ssh", "login")
    assert (again.returncode, "exists already: `--force` replaces it" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--python", "/usr/bin/python9"], "has no Python 3.10 to 3.13 that makes venvs; found: none"),
        (["--python", "a b"], "it is not a path of letters"),
        (["--activate", "exit 7"], "exit code 7"),
    ],
)
def test_a_side_that_cannot_be_used_is_left_as_it_was(laptop: Laptop, home: Path, words: list[str], told: str) -> None:
    done = laptop("site", "init", "hpc", "--ssh", "login", *words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert not laptop.profile.exists()
    assert not (home / ".local").exists()


def test_an_old_python_is_named(laptop: Laptop, home: Path) -> None:
    old = home / "python3"
    facts = {"python": "/old/python3", "version": [3, 8, 10], "machine": "x86_64", "libc": "2.28", "venv": True}
    found = json.dumps({**facts, "torch": None, "numpy": None, "packages": None})
    old.write_text(f"#!/bin/sh\ncat >/dev/null\necho 'found {found}'\n")
    old.chmod(0o755)
    done = laptop("site", "init", "hpc", "--ssh", "login", "--python", str(old))
    assert done.returncode == 1
    assert "found: Python 3.8.10 (/old/python3). Load one with --activate 'module load python'" in done.stderr
