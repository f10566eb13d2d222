"""Starts tasks on the nodes of the current job with the site's mpiexec, which sets the rank of every task.

Not every mpiexec passes the environment to the tasks, so they read it from a file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from launcher import errors
from launcher.processes import guard
from launcher.schedulers import task_group
from launcher.schedulers.pbs import task

SCRIPT = """\
# mpiexec runs this for every task.
umask 077
{environment}
export {guard}={folder}/"$(hostname).$$"
cd {cwd} || {{ [ -n "${{LAUNCHER_RUN_DIR:-}}" ] && cd /; }} || exit 93  # an agent says itself that it is not there
exec {command}
"""


def run(request: task_group.TaskRequest) -> int:
    """Runs `MPIEXEC bash SCRIPT`, where MPIEXEC is `request.mpiexec`, and waits until it exits.

    Returns:
        The exit status of mpiexec (128 + N after signal N), or NO_RETRY if it cannot be started.
    """
    folder, words = request.folder, request.mpiexec
    os.umask(0o077)
    folder.mkdir()
    environment, script = task.write_environment(folder, os.environ), folder / "task.sh"
    script.write_text(
        SCRIPT.format(
            folder=shlex.quote(str(folder)), environment=environment.shell, guard=guard.VARIABLE,
            cwd=shlex.quote(os.getcwd()), command=shlex.join(request.command),
        )
    )  # fmt: skip
    try:
        process = subprocess.Popen([*words, "/bin/bash", str(script)], stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"launcher: {words[0]} (cluster.mpiexec) cannot be started: {error.strerror}", file=sys.stderr)
        return errors.NO_RETRY
    try:
        return task_group.watch([process], request.signals, request.grace, pause=0.1)
    finally:
        environment.remove()  # it may have secrets
