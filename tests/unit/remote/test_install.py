"""`site init --ssh`: what is installed on the other side, which is a home folder of this machine here."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from unittest.mock import Mock

import pytest

from launcher.cli import commands
from launcher.errors import ConfigError
from launcher.remote import install
from launcher.remote.clusters import RemoteCluster, Unreachable, parsed

USER_SITE = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": ".local"}))
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The other side's, whose user has installed two packages for themselves."""

    def shell(cluster: RemoteCluster, script: str, data: bytes | None = None) -> str:
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        return subprocess.run(
            ["bash", "-c", script], input=data or b"", env=environ, cwd=tmp_path, check=True, stdout=subprocess.PIPE
        ).stdout.decode()

    for name in ("numpy", "plain"):
        info = tmp_path / USER_SITE / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(METADATA.format(name=name))
        (info.parent / f"{name}.py").touch()
    monkeypatch.setattr(install, "shell", shell)
    return tmp_path


@pytest.fixture
def cluster(home: Path) -> RemoteCluster:
    return parsed(home / "hpc.yaml", "ssh: login\n")


def test_the_control_connection_may_keep_the_errors_of_ssh_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of OpenSSH before 8.5 does."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nsleep 20 >/dev/null &\necho fine; echo warning >&2\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(install, "TIMEOUT", 5.0)
    target = parsed(tmp_path / "hpc.yaml", "ssh: login\n")
    assert install.shell(target, "true") == "fine\n"
    ssh.write_text("#!/bin/sh\nsleep 20 >/dev/null &\necho gone >&2; exit 255\n")
    with pytest.raises(Unreachable, match="login: gone"):
        install.shell(target, "true")


def test_a_numpy_that_only_the_user_has_is_none(home: Path, cluster: RemoteCluster) -> None:
    found = install.chosen_python(cluster, [], sys._base_executable)  # type: ignore[attr-defined]
    assert found.numpy != "1.0"


def test_a_launcher_that_is_not_installed_connects_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(install, "shell", Mock(side_effect=AssertionError))
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError("launcher"))
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ConfigError, match=r"launcher is not installed here: `pip install -e \S+` first"):
        commands.main(["site", "init", "hpc", "--ssh", "login"])
