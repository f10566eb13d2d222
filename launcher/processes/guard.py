"""Nothing of a task survives it: what it leaves behind is killed, also what has made itself a session of its own.

PBS without its cgroups hook ends a job by killing the sessions that it knows of; a process that called setsid lives on.
Everything that a task starts inherits the variable LAUNCHER_GUARD, and by its value it is found on this host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

VARIABLE = "LAUNCHER_GUARD"
PAUSE = 0.3  # seconds between two looks


def start() -> None:
    """Watches this process from a child; does nothing without LAUNCHER_GUARD. Call it before there are threads."""
    mark, watched = os.environ.get(VARIABLE), os.getpid()
    if not mark or os.fork():
        return
    try:
        os.setsid()  # out of reach of what ends the job
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        while os.getppid() == watched:
            time.sleep(PAUSE)
        while kill_marked(mark):  # what forks while it is killed is found in the next round
            time.sleep(PAUSE)
    finally:
        os._exit(0)


def kill_marked(mark: str) -> bool:
    """Kills the processes of this host that were started with the mark; whether there were any."""
    wanted, found = os.fsencode(f"{VARIABLE}={mark}"), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                marked = wanted in file.read().split(b"\0")
            if marked:
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found
