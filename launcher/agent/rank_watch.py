"""What an agent sees of its ranks from outside: steps, silence, memory, GPUs; what it writes of it as events."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher import processes
from launcher.agent.leader_connection import Signals
from launcher.agent.workers import log_name
from launcher.attach import GONE, RankProcess, RequestHandler, write_reply
from launcher.binding import hardware
from launcher.failures import messages
from launcher.files.json_types import as_json
from launcher.formatting import log_line
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Rendezvous
from launcher.rendezvous.signed_channel import Message
from launcher.runs import directory
from launcher.runs.directory import Events
from launcher.runs.events import GpusUnused, Resized
from launcher.worker.hang_diagnosis import HangReport, Recorders, Stacks, newest_frame
from launcher.worker.heartbeat import Pulse, Sign


class MemoryWatch:
    """Reads memory use, and counts the out-of-memory kills since this object was made. `root`: for tests."""

    def __init__(self, root: Path = hardware.ROOT) -> None:
        self._root = root
        self._kills, self._host_kills = hardware.memory_cgroup(root).kills, hardware.host_kills(root)

    def read(self) -> dict[str, int]:
        """Returns memory use in bytes and counts of out-of-memory kills. Those that are zero or unknown are missing."""
        now = hardware.memory_cgroup(self._root)
        values = {
            "largest": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,  # of any one ended child process
            "limit": now.limit,
            "peak": now.peak,
            "kills": now.kills - self._kills,  # in this process's own cgroup
            "host_kills": hardware.host_kills(self._root) - self._host_kills,
        }
        return {name: value for name, value in values.items() if value}


# What CUDA, ROCm, XPUs and CUDA on Windows' subsystem open when a process uses a GPU
DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD", "/dev/dxg")
GPU_SECONDS = 120.0  # ranks that have opened no GPU for so long are reported, before that only if they have ended,
GPU_SECONDS_AT_LEAST = 10.0  # and ran for so long: there were looks enough not to miss a short use
GPU_LOOKS = 0.02  # seconds between two looks as a share of the time that the ranks have run
LOOK = 5.0  # seconds between two measurements of the ranks' CPU time
BUSY = 0.01  # share of one core: a process that uses less is idle (NCCL's watchdog threads wake up now and then)


@dataclass
class AgentContext:
    """The plan, and the objects by which an agent reads its ranks and writes events; the same in all rounds."""

    plan: JobPlan
    attempt: directory.Attempt
    events: Events  # writes the agent's events
    signals: Signals  # of the agent's process
    pulse: Pulse  # shared memory in which ranks write heartbeats, steps and stop requests
    memory: int  # descriptor of the file for copies of states; -1: none
    stacks: Stacks  # files in memory to which ranks write their stacks
    request_handler: RequestHandler  # serves requests of `attach` commands
    # environment variables of each rank of this agent, for `attach` commands
    environments: Sequence[Mapping[str, str]] = ()
    recorders: Recorders | None = None  # NCCL's flight recorders of the agent's ranks; None: the ranks use no GPUs
    # watches whether ranks of the user's own code use the GPUs that they have; None: they asked for none
    gpus: GpuWatch | None = None

    def report_resized(self, resized: Resized) -> None:
        self.events(resized)
        log_line(messages.of_resized(resized))


class GpuWatch:
    """Reports ranks of one agent none of whose processes opens a GPU, although the run asked for some."""

    def __init__(self, host: str, gpus: int, events: Events, used: Callable[[], bool | None] | None = None) -> None:
        self._host, self._gpus, self._events, self._used = host, gpus, events, used or gpu_is_open
        self._began: float | None = None
        self._next = 0.0
        self._silent = False  # a GPU was opened, or nothing can be known
        self._told: GpusUnused | None = None

    def look(self, ranks: Sequence[int], now: float, *, over: bool = False) -> None:
        """Looks, if it is time to or the ranks are `over`, and reports ranks that have opened no GPU, or do now."""
        if self._silent or not (over or now >= self._next):
            return
        self._began = now if self._began is None else self._began
        age = now - self._began
        self._next = now + max(1.0, GPU_LOOKS * age)
        if not over and self._used() is not False:
            self._silent = True
            if self._told:
                self._report(replace(self._told, opened=True))
        elif self._told is None and age >= (GPU_SECONDS_AT_LEAST if over else GPU_SECONDS):
            self._told = GpusUnused(host=self._host, ranks=tuple(ranks), gpus=self._gpus, seconds=round(age))
            self._report(self._told)

    def _report(self, event: GpusUnused) -> None:
        self._events(event)
        log_line(messages.of_unused_gpus(event))


def gpu_is_open() -> bool | None:
    """Returns whether a process below this one has opened a GPU; None: it cannot be known."""
    for pid in processes.family(os.getpid()):
        try:
            if pid != os.getpid() and processes.uses_gpu(pid, DEVICES):
                return True
        except OSError as error:
            if error.errno == errno.EACCES and processes.state(pid) not in ("", "Z", "X"):
                return None
    return False


class RankActivity:
    """Measures how long all of an agent's ranks have been idle, and which have done no step for too long."""

    def __init__(self, ranks: int, now: float, every: float = LOOK) -> None:
        # now, and every (between two measurements of CPU time): seconds of `idle`'s clock
        self._every = every
        self._beats: list[tuple[int, float]] = [(0, now)] * ranks  # heartbeats (one a step), and when the last came
        self._printed = [0] * ranks  # bytes of output
        self._cpu: list[tuple[float, float]] = [(0.0, now)] * ranks  # CPU seconds, and when they were measured
        self._last, self._next = now, now

    def idle(self, signs: Sequence[Sign], pids: Sequence[int], printed: Sequence[int], now: float) -> float:
        """Returns the seconds since the last CPU time, output or heartbeat of any rank; 0 for ranks that wait in NCCL.

        pids: 0 for a rank that has ended; printed: bytes that each has written so far; now: monotonic seconds.
        """
        for place, (sign, count) in enumerate(zip(signs, printed, strict=True)):
            if self._beats[place][0] != sign.beats:
                self._beats[place], self._last = (sign.beats, now), now
            if self._printed[place] != count:
                self._printed[place], self._last = count, now
        if now >= self._next:
            self._next = now + self._every
            for place, pid in enumerate(pids):
                used, since = self._cpu[place]
                spent = processes.cpu_seconds(pid) if pid else used
                if abs(spent - used) > BUSY * (now - since):
                    self._last = now
                self._cpu[place] = spent, now
        return now - self._last

    def silent(self, signs: Sequence[Sign], timeout: float, now: float) -> list[int]:
        """Returns the places of the ranks in a training, past its first step, with no heartbeat for this long."""
        return [
            place for place, (sign, (beats, since)) in enumerate(zip(signs, self._beats, strict=True))
            if sign.listens and not sign.closed and sign.step >= 0 and beats > 0 and now - since >= timeout
        ]  # fmt: skip


class RankStatus:
    """The state of one agent's ranks in one round, as read from outside their processes."""

    def __init__(
        self, context: AgentContext, rendezvous: Rendezvous, position: int, round_number: int, now: float
    ) -> None:
        # position: in `rendezvous.members`; now: the supervisor's clock, as in the other methods
        plan, own = context.plan, rendezvous.members[position]
        self._context, self._ranks, self._host, self._round = context, own.ranks, own.host, round_number
        self._first_rank = rendezvous.first_rank(position)
        self.signs: list[Sign] = context.pulse.signs()  # the newest heartbeats, by place
        self.step, self.listened = -1, False  # the highest of any rank; whether any has listened for stop requests
        self._next_look = now
        self._asleep = 0.0  # seconds in which this process was suspended, and so maybe its ranks
        self._hang_timeout = math.inf if plan.debugs else plan.launch.hang_timeout
        self._silent_sent = False
        self._activity = RankActivity(own.ranks, now, min(LOOK, plan.launch.idle_timeout / 4))

    def read(self) -> None:
        self.signs = self._context.pulse.signs()
        self.listened = self.listened or any(sign.listens for sign in self.signs)
        self.step = max(self.step, *(sign.step for sign in self.signs))

    def due(self, now: float) -> bool:
        """Returns whether it is time for `measure` and `silence`, which share one timer, and sets the timer."""
        if now < self._next_look:
            return False
        launch = self._context.plan.launch
        if (late := now - self._next_look) > launch.heartbeat / 2:
            self._asleep += late
        self._next_look = now + min(1.0, launch.hang_timeout / 4, launch.heartbeat / 4)
        return True

    def joined(self, ended: Mapping[int, Any]) -> bool:
        """Returns whether all ranks have joined the process group, or have ended (the keys of `ended`, by place)."""
        return all(sign.joined or place in ended for place, sign in enumerate(self.signs))

    @property
    def closed(self) -> bool:
        return all(sign.closed for sign in self.signs)

    def measure(self, pids: Sequence[int], now: float) -> dict[str, Any]:
        """Returns the fields `missing` and `idle` of a heartbeat message; pids: by place; GONE: it has ended."""
        self.watch_gpus(now)
        known = enumerate(zip(self.signs, pids, strict=True), self._first_rank)
        missing = [rank for rank, (sign, pid) in known if not sign.arrived and pid != GONE]
        idle = self._activity.idle(self.signs, pids, self._printed(), now - self._asleep)
        return {"missing": missing, "idle": round(idle, 1)}

    def watch_gpus(self, now: float, *, over: bool = False) -> None:
        if self._context.gpus is not None:
            self._context.gpus.look(range(self._first_rank, self._first_rank + self._ranks), now, over=over)

    def silence(self, now: float) -> Message | None:
        """Returns the message `silent` once, when ranks have done no step for launch.hang_timeout, by `measure`."""
        silent = self._activity.silent(self.signs, self._hang_timeout, now - self._asleep)
        if self._silent_sent or not silent:
            return None
        self._silent_sent = True
        return {"type": "silent", "ranks": [self._first_rank + place for place in silent]}

    def take_stacks(self, pids: Sequence[int]) -> Message:
        """Takes the stacks of this agent's ranks, saves them among the logs, and returns the message `stacks`."""
        ranks = [self._first_rank + place for place in range(self._ranks)]
        recorded = self._context.recorders.take(ranks) if self._context.recorders else [None] * len(ranks)
        reports = []
        for place, (state, stack) in enumerate(self._context.stacks.take(pids)):
            rank = ranks[place]
            frame = newest_frame(stack)
            reports.append(HangReport(rank, self._host, self.signs[place].step, state, frame, recorded[place]))
            text = stack or f"rank {rank} wrote no stack; its process is in state {state or 'gone'}\n"
            with contextlib.suppress(OSError):
                write_reply(self._context.attempt.logs / log_name(rank, self._round, "stacks"), text)
        return {"type": "stacks", "reports": [as_json(report) for report in reports]}

    def processes(self, pids: Sequence[int]) -> list[RankProcess]:
        """Returns the processes of this agent's ranks, for `attach`. `pids`: as in `take_stacks`."""
        return [
            RankProcess(self._first_rank + place, pids[place], sign.step, self._context.environments[place])
            for place, sign in enumerate(self.signs)
        ]

    def _printed(self) -> list[int]:
        sizes = [0] * self._ranks
        for place in range(self._ranks):
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    name = log_name(self._first_rank + place, self._round, stream)
                    sizes[place] += os.stat(self._context.attempt.logs / name).st_size
        return sizes
