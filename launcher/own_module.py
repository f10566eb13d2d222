"""The command name that the user typed, and arguments that start a module without the working folder on sys.path."""

from __future__ import annotations

import os
import sys

# The same as `python -P -m`, which only Python 3.11 and later know. User code may need the working folder: it is put
# back on sys.path before that code is imported.
_CODE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    'import runpy; runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def own_module(name: str) -> list[str]:
    return ["-c", _CODE, name]


def program() -> str:
    """Returns `launcher` or `python -m launcher`, whichever the user has called, for commands shown in hints."""
    name = os.path.basename(sys.argv[0])
    return name if name == "launcher" else "python -m launcher"
