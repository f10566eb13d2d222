"""Finds the commands of Grid Engine, on a login node and in a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def find(command: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Returns the path of a Grid Engine command, or None if it is not found.

    Searches PATH, then the PATH of the submission (SGE_O_PATH) and $SGE_ROOT/bin/ARCH, because a node's PATH may lack
    the commands.

    Args:
        command: name of the command.
        environ: environment to search with; None: that of this process.
    """
    environ = os.environ if environ is None else environ
    root, arch = environ.get("SGE_ROOT"), environ.get("SGE_ARCH") or environ.get("ARC")
    folders = [environ.get("PATH", ""), environ.get("SGE_O_PATH", "")]
    if root and arch:
        folders.append(f"{root}/bin/{arch}")
    return shutil.which(command, path=os.pathsep.join(folders))
