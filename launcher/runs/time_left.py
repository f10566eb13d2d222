"""Computes how much of an attempt's wall time is left, although the clocks of nodes may differ.

The job computes the time left when it starts (`launcher.job.driver`), and sets:

    LAUNCHER_DEADLINE         the deadline, in seconds since the epoch, by the clock of the script's machine
    LAUNCHER_TIME_LEFT        seconds left when the script started
    LAUNCHER_DEADLINE_UPTIME  boot id of the script's machine, and its uptime in seconds at the deadline

| this process | computes the time left from | the result is |
|---|---|---|
| runs on the machine of the job script | the uptime, which does not depend on the clock's setting | sure |
| runs on another machine | its own clock; at most LAUNCHER_TIME_LEFT | not sure |
| has LAUNCHER_DEADLINE only (a function of submitit) | its own clock | sure: there is no better source |

A process that is not sure does not end the attempt while other processes are sure, because a node whose clock is
minutes ahead would end every attempt at once. If no process is sure (the script's node was left out), any process may.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.structs import Struct

BOOT_ID, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")


class TimeLeft(Struct):
    """Seconds until the scheduler ends the attempt, and whether they are sure by the module's table."""

    seconds: float
    sure: bool


def judge(environ: Mapping[str, str], now: float, machine: tuple[str, float] | None) -> TimeLeft | None:
    """Returns the time left of this process's attempt, by the module's table; None: it has no deadline.

    machine: boot id and uptime (in seconds) of this machine; None: unknown. `now` is in seconds since the epoch.
    """
    deadline = environ.get("LAUNCHER_DEADLINE")
    if not deadline:
        return None
    by_clock = float(deadline) - now
    boot_id, _, uptime = environ.get("LAUNCHER_DEADLINE_UPTIME", "").partition(" ")
    if not uptime:
        return TimeLeft(by_clock, sure=True)
    if machine is not None and machine[0] == boot_id:
        return TimeLeft(float(uptime) - machine[1], sure=True)
    return TimeLeft(min(by_clock, float(environ.get("LAUNCHER_TIME_LEFT") or "inf")), sure=False)


def time_left(environ: Mapping[str, str]) -> TimeLeft | None:
    """Returns the time left of the attempt to which this process belongs; None: the attempt has no deadline."""
    machine: tuple[str, float] | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        machine = BOOT_ID.read_text().strip(), uptime()
    return judge(environ, time.time(), machine)


def ends_in(seconds: int) -> None:
    """Sets the variables of this process, for those that it starts: the scheduler ends the attempt in `seconds`."""
    os.environ.update(LAUNCHER_DEADLINE=str(int(time.time()) + seconds), LAUNCHER_TIME_LEFT=str(seconds))
    with contextlib.suppress(OSError, ValueError, IndexError):
        os.environ["LAUNCHER_DEADLINE_UPTIME"] = f"{BOOT_ID.read_text().strip()} {int(uptime()) + seconds}"


def uptime() -> float:
    return float(UPTIME.read_text().split()[0])
