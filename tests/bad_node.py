"""Makes one node of a run a bad one, as a broken set-up would: by its environment, before anything is imported."""

from __future__ import annotations

from pathlib import Path

SITE = """\
import os

if os.environ.get({variable!r}) == {value!r}:
    os.environ["TMPDIR"] = "/nowhere/at/all"
"""


def without_tmpdir(folder: Path, variable: str, value: str) -> str:
    """An override with which TMPDIR is a folder that is not there where `variable` has this value.

    Args:
        folder: to put Python's `sitecustomize` into; it need not be there.
        variable: that tells a node its name (SLURMD_NODENAME) or number (LAUNCHER_NODE).
        value: of the bad node.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE.format(variable=variable, value=value))
    return f"+cluster.environment.PYTHONPATH={folder}"
