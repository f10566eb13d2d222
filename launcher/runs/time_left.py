"""Computes how much of an attempt's time is left, although the clocks of nodes may differ.

The job's script finds the time left when it begins (templates/parts/shared.sh.j2, `ends_in`), and exports:

    LAUNCHER_DEADLINE         the deadline, in seconds since the epoch, by the clock of the script's machine
    LAUNCHER_TIME_LEFT        seconds left when the script began
    LAUNCHER_DEADLINE_UPTIME  boot id of the script's machine, and its uptime in seconds at the deadline

| this process | time left | |
|---|---|---|
| runs on the script's machine | by the uptime, which nobody sets | sure |
| runs on another machine | by its own clock, but not more than the script had | a guess |
| has LAUNCHER_DEADLINE only (a template of the user's own) | by its own clock | sure: there is no better source |

A process with a guess does not end the attempt while others are sure: a node whose clock is minutes ahead would end
every attempt at once. If no process is sure (the script's node was left out), one guess is enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BOOT_ID, UPTIME = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/uptime")


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the scheduler ends the attempt; `sure` is False for a guess."""

    seconds: float
    sure: bool


def judge(environ: Mapping[str, str], now: float, machine: tuple[str, float] | None) -> TimeLeft | None:
    """Returns the time left, by the table above; None: the attempt has no deadline. Pure.

    Args:
        environ: environment of this process.
        now: seconds since the epoch, by this machine's clock.
        machine: boot id and uptime (in seconds) of this machine; None: unknown.
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
    """Returns the time left of the attempt that a process with this environment belongs to; None: no deadline."""
    machine: tuple[str, float] | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        machine = BOOT_ID.read_text().strip(), float(UPTIME.read_text().split()[0])
    return judge(environ, time.time(), machine)
