"""The user works in a folder of somebody else: nothing of what lies there is run.

Needs root, who can be both users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import ROOT
from tests.two_users import SOMEBODY_ELSE, as_somebody_else

# What pip makes of [project.scripts].
CONSOLE_SCRIPT = "import sys\nfrom launcher.__main__ import main\nsys.exit(main())\n"
MODULES = (
    "json", "runpy", "pathlib", "argparse", "asyncio", "subprocess", "socket", "torch", "numpy", "hydra", "submitit",
    "grp", "launcher", "workloads", "yaml",
)  # fmt: skip


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of somebody else, with modules of the names that a Python imports, each of which leaves its name.

    pytest's own folders are below one that nobody else may enter.
    """
    with tempfile.TemporaryDirectory() as name:
        parent = Path(os.path.realpath(name))
        parent.chmod(0o1777)
        yield planted(parent / "theirs")


def planted(folder: Path) -> Path:
    def plant() -> None:
        folder.mkdir()
        (folder / "proof").mkdir(mode=0o777)
        for name in MODULES:
            (folder / f"{name}.py").write_text(f"open({str(folder / 'proof' / name)!r}, 'w').close()\n")

    as_somebody_else(plant)
    assert (folder / "json.py").stat().st_uid == SOMEBODY_ELSE
    return folder


def typed(folder: Path, words: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path),
        "LAUNCHER_RUNS_DIR": str(tmp_path / "runs"), "LAUNCHER_CONFIG_DIR": str(tmp_path / "config"),
        "LAUNCHER_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_and_all_that_it_starts_import_nothing_from_there(theirs: Path, tmp_path: Path) -> None:
    script = tmp_path / "launcher"
    script.write_text(CONSOLE_SCRIPT)
    sizes = ["workload=p2p", "workload.sizes=1K", "workload.iterations=1", "run_id=a"]
    for words in (["nodes=2", "preflight=true", *sizes], ["status"], ["logs", "a"], ["report", "a"], ["doctor"]):
        done = typed(theirs, [str(script), *words], tmp_path)
        assert done.returncode == 0 or words == ["doctor"], done.stdout + done.stderr
        assert "type `launcher` here" not in done.stderr
        assert not [*(theirs / "proof").iterdir()], words
    assert (tmp_path / "runs/a/result.json").exists(), "agents and ranks have run there"


def test_python_m_imports_from_there_and_says_so(theirs: Path, tmp_path: Path) -> None:
    for name in ("launcher", "runpy"):  # Python's own -m would not come as far as the note
        as_somebody_else((theirs / f"{name}.py").unlink)
    done = typed(theirs, ["-m", "launcher", "status"], tmp_path)
    assert done.stderr.startswith("note: `python -m` imports modules from this folder, to which others can write")
    assert [*(theirs / "proof").iterdir()], "else the note is not needed any more"
