"""What we start ourselves imports nothing from the working folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import note_on_folder
from launcher.own_module import own_module
from tests.launch import ROOT

EVIL = "open('pwned', 'w').close()\n"


def test_modules_of_the_working_folder_do_not_count(tmp_path: Path) -> None:
    for name in ("json.py", "runpy.py", "pathlib.py", "launcher.py", "sitecustomize.py"):
        (tmp_path / name).write_text(EVIL)
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/__init__.py").write_text(EVIL)
    done = subprocess.run(
        [sys.executable, "-u", *own_module("launcher.attach.beside"), "relay", "/nowhere"], cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/bin:/usr/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the rank's debugger is not at /nowhere any more" in done.stderr
    assert done.returncode == 1 and not (tmp_path / "pwned").exists()


def test_no_module_of_ours_is_started_in_another_way() -> None:
    started = re.compile(r"\"-m\", \"launcher")
    assert [path for path in (ROOT / "launcher").rglob("*.py") if started.search(path.read_text())] == []


@pytest.mark.parametrize(("mode", "owner", "noted"), [
    (0o755, None, False), (0o770, None, False), (0o1777, None, True), (0o755, 65534, True),
])  # fmt: skip
def test_a_folder_where_others_can_leave_modules_is_noted(
    tmp_path: Path, mode: int, owner: int | None, noted: bool
) -> None:
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(tmp_path, owner, owner)
    tmp_path.chmod(mode)
    assert (note_on_folder(str(tmp_path)) is not None) == noted
    assert note_on_folder(str(tmp_path / "gone")) is None
