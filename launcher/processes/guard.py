"""Kills everything that a task leaves behind, including processes that have started a session of their own.

PBS without its cgroups hook ends a job by killing the sessions that it knows; a process that called setsid survives.
All processes of a task inherit the variable LAUNCHER_GUARD, whose value identifies them on this host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

VARIABLE = "LAUNCHER_GUARD"
PAUSE = 0.3  # seconds between polls


def start() -> None:
    """Before threads: forks a child that waits for this process and kills the others with its LAUNCHER_GUARD."""
    mark, watched = os.environ.get(VARIABLE), os.getpid()
    if not mark or os.fork():
        return
    try:
        os.setsid()  # else the end of the job would kill the guard, too
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        while os.getppid() == watched:
            time.sleep(PAUSE)
        while kill_marked(mark):  # a process may fork while it is being killed: the next round finds the child
            time.sleep(PAUSE)
    finally:
        os._exit(0)


def kill_marked(mark: str) -> bool:
    """Kills this user's other processes here with LAUNCHER_GUARD=`mark`; returns whether there were any."""
    wanted, found = os.fsencode(f"{VARIABLE}={mark}"), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                marked = wanted in file.read().split(b"\0")
            if marked:
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found
