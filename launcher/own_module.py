"""How our own program was called, and how our modules are started: without the working folder on sys.path."""

from __future__ import annotations

import os
import sys

# As `python -P -m` since Python 3.11, and older ones do not know -P. The user's own code finds what is in the working
# folder: it is put back on the path before that is imported.
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    'import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def own_module(name: str) -> list[str]:
    """Arguments of a Python that run a module; the module's own follow. Pure."""
    return ["-c", _CODE, name]


def program() -> str:
    """How this program was called, for commands that the user may copy."""
    name = os.path.basename(sys.argv[0])
    return name if name == "launcher" else "python -m launcher"
