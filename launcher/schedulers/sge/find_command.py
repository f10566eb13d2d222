"""Where Grid Engine's commands are, on a login node and within a job. Pure but for what the file system has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def find(command: str, environ: Mapping[str, str] | None = None) -> str | None:
    """A command, also on a node whose PATH has none: in a job the variables of Grid Engine tell where it was
    submitted from, and where Grid Engine is."""
    environ = os.environ if environ is None else environ
    root, arch = environ.get("SGE_ROOT"), environ.get("SGE_ARCH") or environ.get("ARC")
    folders = [environ.get("PATH", ""), environ.get("SGE_O_PATH", "")]
    if root and arch:
        folders.append(f"{root}/bin/{arch}")
    return shutil.which(command, path=os.pathsep.join(folders))
