"""Finds the commands of Grid Engine, on a login node and in a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def find(command: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the path of a command; None: there is none.

    It is looked up on PATH, in the PATH of the submission, and in the folder of Grid Engine, because the PATH of a node
    may lack it.
    """
    environ = os.environ if environ is None else environ
    root, arch = environ.get("SGE_ROOT"), environ.get("SGE_ARCH") or environ.get("ARC")
    folders = [environ.get("PATH", ""), environ.get("SGE_O_PATH", "")]
    if root and arch:
        folders.append(f"{root}/bin/{arch}")
    return shutil.which(command, path=os.pathsep.join(folders))
