"""Fixtures of the tests of several schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH; what is put there can be called."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path
