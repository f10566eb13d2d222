"""What `site init --ssh` installs on the other side, into an environment that pip makes there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from launcher.remote import install
from launcher.remote.clusters import COMMAND, RemoteCluster
from launcher.remote.install import FarPython
from tests.unit.remote.test_install import METADATA, cluster, home

__all__ = ["cluster", "home"]


def test_what_the_user_has_installed_for_themselves_is_brought_along(
    home: Path, cluster: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(python: FarPython, folder: Path) -> None:
        with zipfile.ZipFile(folder / "plain-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("plain.py", "")
            archive.writestr("plain-1.0.dist-info/METADATA", METADATA.format(name="plain"))
            archive.writestr(
                "plain-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr("plain-1.0.dist-info/RECORD", "")

    monkeypatch.setattr(install, "download", download)
    (python_there := home / "a b/python").parent.mkdir()
    python_there.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python_there.chmod(0o700)
    facts = {"python": str(python_there), "version": sys.version_info[:3], "machine": "", "libc": "", "venv": True}
    install.install(
        cluster, FarPython(**facts, torch=None, numpy=None, packages=sysconfig.get_path("purelib")), [], install.wheel()
    )
    python = home / Path(COMMAND).parent / "venv/bin/python"
    subprocess.run([python, "-I", "-c", "import plain, launcher"], check=True)
