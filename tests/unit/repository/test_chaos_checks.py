"""What the chaos harness goes by when it says that nothing sound is gone and who is blamed."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.checkpoint.format import Manifest
from tests.chaos import file_server
from tests.chaos.blows import Blame, missing

NOBODY = 1 << 30  # a process id that there is not; 1 may be the parent of pytest
ONE = Manifest(0, "single", 1, 0, {}, {}, {}, {}, lineage="a")


def known(*steps: int, lineage: str = "a") -> dict[Path, Manifest]:
    """Checkpoints that were published in this order."""
    return {Path(f"step-{step}"): replace(ONE, step=step, sequence=step, lineage=lineage) for step in steps}


@pytest.mark.parametrize(
    ("before", "after", "damaged", "gone"),
    [
        (known(20, 40), known(20, 40), set(), []),
        (known(20, 40), known(60, 80), set(), []),
        (known(20, 40), known(40, 60), set(), []),
        (known(20, 40), known(60), set(), ["step-40"]),
        (known(20, 40), known(20), set(), ["step-40"]),
        (known(20, 40), known(20), {40}, []),
        (known(20, 40), {}, set(), ["step-20", "step-40"]),
        (known(20, 40), known(60, 80, lineage="b"), set(), ["step-20", "step-40"]),
        ({}, known(20), set(), []),
    ],
)
def test_what_was_sound_may_only_be_gone_by_retention(
    before: dict[Path, Manifest], after: dict[Path, Manifest], damaged: set[int], gone: list[str]
) -> None:
    assert missing(before, after, damaged) == gone


@pytest.mark.parametrize(
    ("blame", "event", "fits"),
    [
        (Blame(rank=1), {"rank": 1, "node": 0}, True),
        (Blame(rank=1), {"rank": 0, "node": 1}, False),
        (Blame(node=1), {"node": 1}, True),
        (Blame(node=1), {"rank": 1, "node": 0}, False),
        (Blame(rank=1, node=1), {"rank": None, "node": 1}, True),
        (Blame(), {"rank": None, "node": 0}, False),
    ],
)
def test_whom_an_event_names(blame: Blame, event: dict[str, Any], fits: bool) -> None:
    assert blame.fits(event) is fits


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a job that this process belongs to."""
    (tmp_path / "chaos").mkdir()
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("LAUNCHER_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def fails(run_dir: Path, event: str = "os.scandir", path: str = "checkpoints") -> bool:
    try:
        file_server._heard(event, (str(run_dir / path), None, 0))
    except OSError as error:
        assert error.errno == errno.EIO
        return True
    return False


@pytest.mark.parametrize(
    ("where", "strikes"),
    [
        ({}, True),
        ({"parts": ["/checkpoints"]}, True),
        ({"parts": ["/lease"]}, False),
        ({"rank": 0}, False),
        ({"agent": NOBODY}, False),
        ({"call": "os.scandir"}, True),
        ({"call": "open"}, False),
    ],
)
def test_where_the_file_server_is_weak(run_dir: Path, where: dict[str, Any], strikes: bool) -> None:
    assert not fails(run_dir)
    file_server.weaken(run_dir, errno.EIO, 60, **where)
    assert fails(run_dir) == strikes == file_server.met(run_dir)
    assert not fails(run_dir, "os.mkdir")  # reads fail, writes do not
    assert not fails(run_dir, path="chaos/now")
    file_server.recover(run_dir)
    assert not fails(run_dir)


def test_a_weakness_passes(run_dir: Path) -> None:
    file_server.weaken(run_dir, errno.EIO, -1)  # the clock may stand still between two calls
    assert not fails(run_dir)
