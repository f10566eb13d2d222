"""How much of an attempt's time is left, by no clock that may be off.

The job's script is told what is left when it begins (templates/parts/shared.sh.j2, `ends_in`), and hands on:

    LAUNCHER_DEADLINE         the end, in seconds since the epoch, by the clock of the script's machine
    LAUNCHER_TIME_LEFT        what was left then, in seconds
    LAUNCHER_DEADLINE_UPTIME  the script's machine (its boot id), and its uptime at the end

| this process | what is left |
|---|---|
| runs on the script's machine | by its uptime, which nobody sets: sure |
| runs on another one | by its own clock, but not more than the script had: a guess |
| was told LAUNCHER_DEADLINE only (a template of the user's own) | by its own clock: sure, for nobody knows better |

Who guesses does not end an attempt while there are others who know: a node whose clock is minutes ahead would end every
attempt before it has begun. One of those who guess is enough where nobody knows (the script's node was left out).
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
    """Seconds until the scheduler ends the attempt, and whether that is more than a guess."""

    seconds: float
    sure: bool


def judge(environ: Mapping[str, str], now: float, machine: tuple[str, float] | None) -> TimeLeft | None:
    """What is left, by the table above; None: the attempt has no end. Pure.

    Args:
        environ: of this process.
        now: seconds since the epoch, by this machine's clock.
        machine: boot id and uptime of this machine; None: it does not tell.
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
    """What is left now of the attempt that a process with this environment belongs to; None: it has no end."""
    machine: tuple[str, float] | None = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        machine = BOOT_ID.read_text().strip(), float(UPTIME.read_text().split()[0])
    return judge(environ, time.time(), machine)
