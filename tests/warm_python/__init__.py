"""Agents and programs of tests are forks of a process that has imported torch, which is most of what a short run costs.

`python()` returns an interpreter for the launcher's commands and for programs. It is this one, but for what imports
torch: that it starts as forks of a process that it keeps (`server`), and stands in for them (`client`): it has the
process id that the scheduler knows, hands on signals, and ends as they do; and they end if it is killed. Where a rank
of such an agent executes a user's program, it goes on as a Python with that program (`new_python`).

What differs from a program that nobody has forked starts as it does for users: another user, process namespace or
cgroup, a `sitecustomize`, a library of LD_PRELOAD, other options than -u.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOM = "." * 100_000  # the kernel takes 128 kB a string
VARIABLES, ARGUMENTS = 12, 2  # so many times ROOM is the most for a program's environment, and for its arguments


@cache
def python() -> str:
    """Returns the path of the interpreter, one for each process of pytest, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    real = Path(sys.executable)
    (folder / "bin").mkdir()
    for each in real.parent.iterdir():
        if not each.name.startswith("python"):
            (folder / "bin" / each.name).symlink_to(each)
    (folder / "pyvenv.cfg").symlink_to(real.parents[1] / "pyvenv.cfg")
    (folder / "lib").symlink_to(real.parents[1] / "lib")
    wrapper = folder / "bin" / "python"
    wrapper.write_text(f"#!{real.resolve()} -IS\n{(HERE / 'client.py').read_text()}")
    wrapper.chmod(0o755)
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:  # who connects before torch is imported waits for that
        listening.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o600)
        listening.listen(64)
        process = subprocess.Popen(
            [wrapper, "-m", "tests.warm_python.server", str(listening.fileno()), *[ROOM] * ARGUMENTS],
            cwd=HERE.parents[1], env={f"ROOM{number}": ROOM for number in range(VARIABLES)}, stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
        )  # fmt: skip

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return str(wrapper)
