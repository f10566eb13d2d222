"""Finds ranks that hang: that they do, which ones, and where, from the stacks of all ranks.

A rank that hangs holds up all others in their next collective, so all are silent at once. What tells them apart is
what the kernel and the interpreter say of each.
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

from launcher.files import memory_file
from launcher.worker import flight_recorder
from launcher.worker.heartbeat import Sign

SIGNAL = signal.SIGQUIT  # makes a rank write its stacks; trainings have handlers of their own for the others
WRITES = 1.0  # seconds in which a rank that can write its stacks has done so
LOOK = 5.0  # seconds between two looks at the CPU time of ranks
BUSY = 0.01  # of one core: a process that uses less only waits (NCCL's watchdog threads wake now and then)
# Where a rank is that waits for others: in a collective, in DDP's or autograd's engine, in the agreement on a stop.
_WAITS = re.compile(r"/torch/(distributed/|autograd/graph\.py)|/launcher/worker/(stop|process_group)\.py|/ranks\.py")


@dataclass(frozen=True)
class Report:
    """One rank at the time of a hang.

    Attributes:
        rank: it.
        host: its node.
        step: steps of the run that it has done.
        state: the kernel's letter for its process (man 5 proc, /proc/PID/stat): R, S, D, T, ...; empty: it is gone.
        stack: its stacks as faulthandler writes them; empty: it did not write any.
        recorder: what NCCL's flight recorder says of it (flight_recorder.to_json); empty: it has none.
    """

    rank: int
    host: str
    step: int
    state: str
    stack: str
    recorder: str = ""


@dataclass(frozen=True)
class Blamed:
    """Who is to blame for a hang.

    Attributes:
        names: `rank 1 on node2`.
        why: how one can tell.
        rank: the first of them.
        step: steps of the run that the slowest of them has done.
    """

    names: str
    why: str
    rank: int | None
    step: int | None


def suspects(reports: Sequence[Report]) -> tuple[list[Report], str]:
    """The ranks to blame, and how one tells. Pure; the first line that fits some, but not all, ranks counts.

    | a rank | because |
    |---|---|
    | is stopped, or waits for a device or a file server | state T, t or D |
    | wrote no stacks | its interpreter does not get to it |
    | holds up a collective on the GPUs | NCCL's flight recorder says so; see `flight_recorder.blame` |
    | is outside of every collective | the others wait for it in one |
    | has done fewer steps than others | it is behind |

    When none fits, all are to blame.
    """
    stopped = [each for each in reports if each.state in ("T", "t", "D")]
    if stopped:
        words = {"D": "waits for a device or a file server (state D)"}
        return stopped, words.get(stopped[0].state, "is stopped (state T)")
    lowest = min((each.step for each in reports), default=0)
    blamed = flight_recorder.blame([flight_recorder.from_json(each.recorder) for each in reports if each.recorder])
    held_up = {suspect.rank: suspect.why for suspect in blamed}
    for chosen, words_of_it in (
        ([each for each in reports if not each.stack], "does not even write its stack"),
        ([each for each in reports if each.rank in held_up], next(iter(held_up.values()), "")),
        ([each for each in reports if not waits(each.stack)], "is in no collective, and others wait for it in one"),
        ([each for each in reports if each.step == lowest], "is behind the others"),
    ):
        if chosen and len(chosen) < len(reports):
            return chosen, words_of_it
    return list(reports), "is silent, as are all others"


def waits(stack: str) -> bool:
    """Whether the main thread waits for other ranks. Pure; faulthandler writes its newest frame first."""
    threads = re.split(r"\n\s*\n", stack.strip())
    main = threads[-1]  # faulthandler writes the main thread last
    newest = next((line for line in main.splitlines() if line.lstrip().startswith("File ")), "")
    return bool(_WAITS.search(newest))


class StepWatch:
    """When each rank of an agent has last done a step."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._last: dict[int, tuple[int, float]] = {}

    def silent(self, signs: Sequence[Sign], now: float) -> list[int]:
        """The ranks (by place) that listen, have done a step, and told nothing for `timeout` seconds.

        Args:
            signs: of all ranks of the agent.
            now: seconds, by any clock that does not jump.
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
    """Any sign of life of the ranks of an agent, for every kind of workload: CPU time, output, steps."""

    def __init__(self, ranks: int, now: float, every: float = LOOK) -> None:
        """
        Args:
            ranks: of this agent.
            now: the time; see `idle`.
            every: seconds between two looks at CPU time.
        """
        self._every = every
        self._seen: list[tuple[int, int]] = [(0, 0)] * ranks  # signs in the pulse, bytes printed
        self._cpu: list[tuple[float, float]] = [(0.0, now)] * ranks  # seconds, and when they were looked at
        self._last, self._next = now, now

    def idle(self, signs: Sequence[Sign], pids: Sequence[int], printed: Sequence[int], now: float) -> float:
        """Seconds since the last sign of life of any of the ranks.

        A rank that waits for others in NCCL keeps a core busy, so a hang of such ranks is only found by their steps.

        Args:
            signs: what each rank has told.
            pids: of each rank; 0: it has ended.
            printed: bytes that each rank has printed.
            now: seconds, by any clock that does not jump.
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
    """CPU time of a process and of its descendants that live (man 5 proc, /proc/PID/stat); 0 when it is gone."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [Path(task.path, "children").read_text() for task in os.scandir(f"/proc/{pid}/task")]
    except (OSError, IndexError):
        return 0.0
    own = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(int(child)) for text in children for child in text.split())


def blame(reports: Iterable[Mapping[str, Any]]) -> Blamed:
    """Whom to blame for a hang, from the stacks that all agents have sent. Pure."""
    guilty, why = suspects([Report(**report) for report in reports])
    names = "; ".join(f"rank {each.rank} on {each.host}" for each in guilty[:4])
    step = min((each.step for each in guilty), default=None)
    return Blamed(names, why, guilty[0].rank if guilty else None, step)


class Stacks:
    """Memory files that the ranks of one agent write their stacks to: a rank that hangs may not get to a disk."""

    def __init__(self, ranks: int) -> None:
        self._files = [memory_file.make(f"stacks-{place}") for place in range(ranks)]

    def clear(self) -> None:
        for file in self._files:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)  # the ranks share the position

    def file(self, place: int) -> int:
        """For the rank with this place, in its own process; see `serve`."""
        return self._files[place]

    def take(self, pids: Sequence[int]) -> list[tuple[str, str]]:
        """State of the process and stacks of every rank; empty for one that wrote none in time.

        Only who takes the signal is sent it: others would die of it (a rank that was forked a moment ago, a program
        that a rank became, and who has the number of a rank that is gone).
        """
        self.clear()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if pid > 0 and _survives(pid):  # 0 stands for none, and would be this process's whole group
                    os.kill(pid, SIGNAL)
        give_up, sizes = time.monotonic() + WRITES, [-1] * len(pids)
        while time.monotonic() < give_up:
            before, sizes = sizes, [os.fstat(file).st_size for file in self._files]
            if all(sizes) and sizes == before:
                break
            time.sleep(0.05)
        return [
            (state(pid), os.pread(file, 1 << 20, 0).decode(errors="replace"))
            for pid, file in zip(pids, self._files, strict=True)
        ]


def serve(file: int) -> None:
    """In a rank: from now on `SIGNAL` makes it write the stacks of all its threads to this file."""
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)


def _survives(pid: int) -> bool:
    """Whether a process has a handler for the signal, or ignores it (man 5 proc, SigCgt and SigIgn)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it is gone
        return False
    masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (SIGNAL - 1) & 1 for mask in masks)


def state(pid: int) -> str:
    """The kernel's letter for the state of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
