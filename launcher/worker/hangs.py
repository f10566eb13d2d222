"""Detects ranks that hang, and finds out which ones and where, from the stacks of all ranks.

A rank that hangs blocks all others in their next collective, so all become silent at once. The kernel's state and the
interpreter's stacks tell them apart.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.failures.codes import HangSign
from launcher.files import memory_file
from launcher.runs.events import Accused, BlockedCollective
from launcher.worker import flight_recorder
from launcher.worker.heartbeat import Sign

SIGNAL = signal.SIGQUIT  # makes a rank write its stacks; trainings have handlers of their own for other signals
WRITES = 1.0  # seconds in which a rank writes its stacks if it can
MOST_BLAMED = 16  # ranks that are named as the cause of a hang
LOOK = 5.0  # seconds between two measurements of the ranks' CPU time
BUSY = 0.01  # of one core: a process that uses less is waiting (NCCL's watchdog threads wake up now and then)
# Where a rank waits for others: in a collective, in DDP's or autograd's engine, in the agreement on a stop.
_WAITS = re.compile(r"/torch/(distributed/|autograd/graph\.py)|/launcher/worker/(stop|process_group)\.py|/ranks\.py")


@dataclass(frozen=True)
class Report:
    """The state of one rank during a hang.

    Attributes:
        rank: its number.
        host: its node.
        step: steps of the run that it has done.
        state: the kernel's state letter of its process (man 5 proc, /proc/PID/stat): R, S, D, T, ...; empty if gone.
        stack: its stacks as faulthandler writes them; empty if it wrote none.
        recorder: its flight recorder (flight_recorder.to_json); empty if it has none.
    """

    rank: int
    host: str
    step: int
    state: str
    stack: str
    recorder: str = ""


@dataclass(frozen=True)
class Blamed:
    """The ranks to blame for a hang.

    Attributes:
        ranks: the ranks; empty: no rank has reported.
        sign: by what they were found.
        collective: for HangSign.RECORDER, the collective that they block.
        step: steps of the run that the slowest of them has done.
    """

    ranks: tuple[Accused, ...]
    sign: HangSign
    collective: BlockedCollective | None = None
    step: int | None = None


def suspects(reports: Sequence[Report]) -> tuple[list[Report], HangSign, BlockedCollective | None]:
    """Returns the ranks to blame, by what they were found, and the collective that they block. Pure.

    The first row that applies to some, but not all, ranks decides:

    | a rank | |
    |---|---|
    | is stopped, or waits for a device or a file server | state T, t or D |
    | wrote no stacks | its interpreter does not run |
    | blocks a collective on the GPUs | according to the flight recorder; see `flight_recorder.blame` |
    | is outside of every collective | the others wait for it in one |
    | has done fewer steps than others | |

    If no row applies, all ranks are returned.
    """
    stopped = [each for each in reports if each.state in ("T", "t", "D")]
    if stopped:
        return stopped, HangSign.DEVICE if stopped[0].state == "D" else HangSign.STOPPED, None
    lowest = min((each.step for each in reports), default=0)
    blamed = flight_recorder.blame([flight_recorder.from_json(each.recorder) for each in reports if each.recorder])
    blocks = {suspect.rank: suspect.collective for suspect in blamed}
    for chosen, sign in (
        ([each for each in reports if not each.stack], HangSign.NO_STACK),
        ([each for each in reports if each.rank in blocks], HangSign.RECORDER),
        ([each for each in reports if not waits(each.stack)], HangSign.OUTSIDE),
        ([each for each in reports if each.step == lowest], HangSign.BEHIND),
    ):
        if chosen and len(chosen) < len(reports):
            return chosen, sign, next(iter(blocks.values())) if sign is HangSign.RECORDER else None
    return list(reports), HangSign.ALL, None


def waits(stack: str) -> bool:
    """Whether the main thread waits for other ranks. Pure. faulthandler writes the newest frame first."""
    threads = re.split(r"\n\s*\n", stack.strip())
    main = threads[-1]  # faulthandler writes the main thread last
    newest = next((line for line in main.splitlines() if line.lstrip().startswith("File ")), "")
    return bool(_WAITS.search(newest))


class StepWatch:
    """Records when each rank of an agent has last done a step."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._last: dict[int, tuple[int, float]] = {}

    def silent(self, signs: Sequence[Sign], now: float) -> list[int]:
        """The places of the ranks that listen, have done a step, and then nothing for `timeout` seconds.

        Args:
            signs: of all ranks of the agent.
            now: seconds of a monotonic clock.
        """
        found = []
        for place, sign in enumerate(signs):
            beats, since = self._last.get(place, (-1, now))
            if beats != sign.beats:
                self._last[place] = beats, since = sign.beats, now
            if sign.listens and sign.step >= 0 and beats > 0 and now - since >= self._timeout:
                found.append(place)
        return found


class Activity:
    """Signs of life of an agent's ranks, for every kind of workload: CPU time, output, steps."""

    def __init__(self, ranks: int, now: float, every: float = LOOK) -> None:
        """
        Args:
            ranks: number of this agent's ranks.
            now: see `idle`.
            every: seconds between two measurements of CPU time.
        """
        self._every = every
        self._seen: list[tuple[int, int]] = [(0, 0)] * ranks  # heartbeats, bytes of output
        self._cpu: list[tuple[float, float]] = [(0.0, now)] * ranks  # CPU seconds, and when they were measured
        self._last, self._next = now, now

    def idle(self, signs: Sequence[Sign], pids: Sequence[int], printed: Sequence[int], now: float) -> float:
        """Seconds since the last sign of life of any rank.

        Ranks that wait in NCCL keep a core busy, so a hang of such ranks is only found by their steps.

        Args:
            signs: of each rank.
            pids: of each rank; 0 if it has ended.
            printed: bytes of output of each rank.
            now: seconds of a monotonic clock.
        """
        for place, (sign, count) in enumerate(zip(signs, printed, strict=True)):
            if self._seen[place] != (sign.beats, count):
                self._seen[place] = sign.beats, count
                self._last = now
        if now >= self._next:
            self._next = now + self._every
            for place, pid in enumerate(pids):
                used, since = self._cpu[place]
                spent = cpu_seconds(pid) if pid else used
                if abs(spent - used) > BUSY * (now - since):
                    self._last = now
                self._cpu[place] = spent, now
        return now - self._last


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its living descendants (man 5 proc, /proc/PID/stat); 0 if it is gone."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [Path(task.path, "children").read_text() for task in os.scandir(f"/proc/{pid}/task")]
    except (OSError, IndexError):
        return 0.0
    own = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(int(child)) for text in children for child in text.split())


def blame(reports: Iterable[Mapping[str, Any]]) -> Blamed:
    """The ranks to blame for a hang, from the reports of all agents. Pure."""
    guilty, sign, collective = suspects([Report(**report) for report in reports])
    ranks = tuple(Accused(host=each.host, rank=each.rank) for each in guilty[:MOST_BLAMED])
    return Blamed(ranks, sign, collective, min((each.step for each in guilty), default=None))


class Stacks:
    """Files in memory for the stacks of one agent's ranks: a rank that hangs may be unable to write to a disk."""

    def __init__(self, ranks: int) -> None:
        self._files = [memory_file.make(f"stacks-{place}") for place in range(ranks)]

    def clear(self) -> None:
        for file in self._files:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)  # the ranks share the position

    def file(self, place: int) -> int:
        """The file descriptor for the rank with this place; see `serve`."""
        return self._files[place]

    def take(self, pids: Sequence[int]) -> list[tuple[str, str]]:
        """The process state and the stacks of every rank; empty stacks for a rank that wrote none in time.

        Only processes with a handler get the signal, which would kill others: a rank that was just forked, a program
        that a rank has executed, or an unrelated process with the id of a rank that is gone.
        """
        self.clear()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid > 0 and _survives(pid):  # 0 means none, and would signal this process's group
                    os.kill(pid, SIGNAL)
        deadline, sizes = time.monotonic() + WRITES, [-1] * len(pids)
        while time.monotonic() < deadline:
            before, sizes = sizes, [os.fstat(file).st_size for file in self._files]
            if all(sizes) and sizes == before:
                break
            time.sleep(0.05)
        return [
            (state(pid), os.pread(file, 1 << 20, 0).decode(errors="replace"))
            for pid, file in zip(pids, self._files, strict=True)
        ]


def serve(file: int) -> None:
    """In a rank: `SIGNAL` makes it write the stacks of all threads to this file from now on."""
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def _survives(pid: int) -> bool:
    """Whether a process handles or ignores the signal (man 5 proc, SigCgt and SigIgn)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it is gone
        return False
    masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (SIGNAL - 1) & 1 for mask in masks)


def state(pid: int) -> str:
    """The kernel's state letter of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
