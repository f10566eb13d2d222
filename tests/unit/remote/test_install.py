"""`site init --ssh`: what is installed on the other side, which is a home folder of this machine here."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from unittest.mock import Mock

import pytest

from launcher.cli import commands
from launcher.errors import ConfigError
from launcher.remote import install


def test_a_launcher_that_is_not_installed_connects_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(install, "shell", Mock(side_effect=AssertionError))
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError("launcher"))
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ConfigError, match=r"launcher is not installed here: `pip install -e \S+` first"):
        commands.main(["site", "init", "hpc", "--ssh", "login"])
