"""What we start ourselves imports nothing from the working folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.__main__ import note_on_folder
from launcher.files import permission_bits
from launcher.paths import own_module
from tests.launch import ROOT

pytestmark = pytest.mark.root

EVIL = "open('pwned', 'w').close()\n"


def test_modules_of_the_working_folder_do_not_count(tmp_path: Path) -> None:
    for name in ("json.py", "runpy.py", "pathlib.py", "launcher.py", "sitecustomize.py"):
        (tmp_path / name).write_text(EVIL)
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/__init__.py").write_text(EVIL)
    done = subprocess.run(
        [sys.executable, "-u", *own_module("launcher.attach"), "relay", "/nowhere"], cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/bin:/usr/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the rank's debugger is not at /nowhere any more" in done.stderr
    assert done.returncode == 1 and not (tmp_path / "pwned").exists()


def test_no_module_of_ours_is_started_in_another_way() -> None:
    started = re.compile(r"\"-m\", \"launcher")
    assert [path for path in (ROOT / "launcher").rglob("*.py") if started.search(path.read_text())] == []


def test_who_is_in_a_group_is_not_asked_of_a_module_in_the_working_folder(tmp_path: Path) -> None:
    """`grp` is a file of the Python in many installations, so one in front on the path would come first."""
    for name in ("grp.py", "pwd.py"):
        (tmp_path / name).write_text(EVIL)
    tmp_path.chmod(0o770)
    code = "import sys; from launcher.__main__ import note_on_folder; note_on_folder(); print(repr(sys.path[0]))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "''", "the working folder is on the path again"
    assert not (tmp_path / "pwned").exists()


def test_nothing_is_imported_before_the_note() -> None:
    code = "import sys; before = {*sys.modules}; import launcher.files.permission_bits; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == {"launcher", "launcher.files", "launcher.files.permission_bits"}


@pytest.mark.parametrize(("mode", "owner", "group", "noted"), [
    (0o755, None, None, False), (0o770, None, None, False), (0o1777, None, None, True), (0o755, 65534, None, True),
    (0o2770, None, 65534, True), (0o2750, None, 65534, False),
])  # fmt: skip
def test_a_folder_where_others_can_leave_modules_is_noted(
    tmp_path: Path, mode: int, owner: int | None, group: int | None, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if owner is not None or group is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(tmp_path, -1 if owner is None else owner, -1 if group is None else group)
    monkeypatch.setattr(permission_bits, "private_group", lambda _: os.getegid())
    tmp_path.chmod(mode)
    assert (note_on_folder(str(tmp_path)) is not None) == noted
    assert note_on_folder(str(tmp_path / "gone")) is None
