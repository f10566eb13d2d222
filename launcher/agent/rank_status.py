"""Polls the ranks of one agent: reads their heartbeats, output sizes and step times, and their stacks if they hang."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.agent.forks import uses_gpu
from launcher.agent.logs import log_name
from launcher.agent.signals import Signals
from launcher.agent.stragglers import Paces
from launcher.attach.request_handler import GONE, Process, RequestHandler
from launcher.failures import text
from launcher.log_line import log_line
from launcher.rendezvous.channel import Message
from launcher.rendezvous.rounds import Rendezvous
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import GpusUnused, Resized
from launcher.spec.plan import JobPlan
from launcher.worker import hangs
from launcher.worker.flight_recorder import Recorders
from launcher.worker.hangs import Activity, StepWatch
from launcher.worker.heartbeat import Pulse, Sign

# What CUDA, ROCm, XPUs and CUDA on Windows' subsystem open when a process uses a GPU
DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD", "/dev/dxg")
GPU_SECONDS = 120.0  # ranks that have opened no GPU for so long are reported, before that only if they have ended,
GPU_SECONDS_AT_LEAST = 10.0  # and ran for so long: there were looks enough not to miss a short use
GPU_LOOKS = 0.02  # seconds between two looks as a share of the time that the ranks have run


@dataclass
class AgentContext:
    """The plan, and the objects by which an agent reads its ranks and writes events; the same in all rounds."""

    plan: JobPlan  # the run's plan
    attempt: directory.Attempt  # the attempt
    events: Events  # writes the agent's events
    signals: Signals  # the signals of the agent's process
    pulse: Pulse  # shared memory in which ranks write heartbeats, steps and stop requests
    stacks: hangs.Stacks  # files in memory to which ranks write their stacks
    request_handler: RequestHandler  # serves requests of `attach` commands
    # environment variables of each rank of this agent, for `attach` commands
    environments: Sequence[Mapping[str, str]] = ()
    recorders: Recorders | None = None  # NCCL's flight recorders of the agent's ranks; None: the ranks use no GPUs
    # watches whether ranks of the user's own code use the GPUs that they have; None: they asked for none
    gpus: GpuWatch | None = None

    def report_resized(self, resized: Resized) -> None:
        """Writes an event and a log line about agents that were lost or came back."""
        self.events(resized)
        log_line(text.of_resized(resized))


class GpuWatch:
    """Reports ranks of one agent that do not use the GPUs that the run asked for: none of their processes opens one.

    Nothing is reported if it cannot be known, because a process belongs to another user.
    """

    def __init__(self, host: str, gpus: int, events: Events, used: Callable[[], bool | None] | None = None) -> None:
        """gpus: GPUs per node that the run asked for.
        used: returns whether a process of the ranks has a GPU open; None: unknown. By default it looks.
        """
        self._host, self._gpus, self._events, self._used = host, gpus, events, used or gpu_is_open
        self._began: float | None = None
        self._next = 0.0
        self._silent = False  # a GPU was opened, or nothing can be known
        self._told: GpusUnused | None = None

    def look(self, ranks: Sequence[int], now: float, *, over: bool = False) -> None:
        """Looks if it is time to, and reports ranks that have opened no GPU, or that do now. Called once a second.

        now: monotonic seconds.
        over: whether the ranks have ended. What was seen of them before then counts.
        """
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
        log_line(text.of_unused_gpus(event))


def gpu_is_open() -> bool | None:
    """Returns whether a process below this one has opened a GPU; None: it cannot be known."""
    for pid in hangs.family(os.getpid()):
        try:
            if pid != os.getpid() and uses_gpu(pid, DEVICES):
                return True
        except OSError as error:
            if error.errno == errno.EACCES and hangs.state(pid) not in ("", "Z", "X"):
                return None
    return False


class RankStatus:
    """The state of one agent's ranks in one round, as read from outside their processes.

    A rank's `place` is its index among the ranks of its agent, from 0.

    signs: the newest heartbeat of each rank, by place.
    step: highest step of the run that any rank has done; -1: none.
    listened: whether any rank has listened for stop requests, and so can resume.
    """

    def __init__(
        self, context: AgentContext, rendezvous: Rendezvous, position: int, round_number: int, now: float
    ) -> None:
        """context: the plan, and the objects by which the agent reads its ranks and writes events.
        position: index of this agent in `rendezvous.members`.
        round_number: index of the round, from 0.
        now: monotonic seconds (the supervisor's clock), as in the other methods.
        """
        plan, own = context.plan, rendezvous.members[position]
        self._context, self._ranks, self._host, self._round = context, own.ranks, own.host, round_number
        self._first_rank = rendezvous.first_rank(position)
        self.signs: list[Sign] = context.pulse.signs()
        self.step, self.listened = -1, False
        self._next_look = 0.0
        self._steps = StepWatch(math.inf if plan.debugs else plan.launch.hang_timeout)
        self._silent_sent = False
        self._activity = Activity(own.ranks, now, min(hangs.LOOK, plan.launch.idle_timeout / 4))
        self._paces = Paces(plan, context.attempt, context.events, rendezvous, position, round_number)

    def read(self) -> None:
        """Reads the heartbeats of all ranks, and updates the attributes."""
        self.signs = self._context.pulse.signs()
        self.listened = self.listened or any(sign.listens for sign in self.signs)
        self.step = max(self.step, *(sign.step for sign in self.signs))

    def due(self, now: float) -> bool:
        """Returns whether it is time to call `measure`, `silence` and `pace`, which share one timer.

        If so, it also sets the timer, so that the next call returns False until the timer has expired.
        """
        if now < self._next_look:
            return False
        launch = self._context.plan.launch
        self._next_look = now + min(1.0, launch.hang_timeout / 4, launch.heartbeat / 4)
        return True

    def joined(self, ended: Mapping[int, Any]) -> bool:
        """Returns whether all ranks have joined the process group, or have ended.

        ended: the places of the ranks that have ended, as keys.
        """
        return all(sign.joined or place in ended for place, sign in enumerate(self.signs))

    def measure(self, pids: Sequence[int], now: float) -> dict[str, Any]:
        """Returns the fields `missing` and `idle` of a heartbeat message (see `coordinator`).

        pids: process ids by place; GONE for a rank that has ended.
        now: monotonic seconds.
        """
        self.watch_gpus(now)
        missing = [
            self._first_rank + place
            for place, sign in enumerate(self.signs)
            if not sign.arrived and pids[place] != GONE
        ]
        return {"missing": missing, "idle": round(self._activity.idle(self.signs, pids, self._printed(), now), 1)}

    def watch_gpus(self, now: float, *, over: bool = False) -> None:
        if self._context.gpus is not None:
            self._context.gpus.look(range(self._first_rank, self._first_rank + self._ranks), now, over=over)

    def pace(self, now: float) -> dict[str, Any] | None:
        """Returns step times to send to the leader; None: none are due, or a debugger may be holding up the ranks."""
        return None if self._context.plan.debugs else self._paces.look(self._context.pulse.paces(), now)

    def judge_paces(self, paces: Sequence[dict[str, Any]]) -> None:
        """On the leader: takes the `pace` fields of all agents' heartbeats, and reports ranks that have become slow."""
        self._paces.judge(paces)

    def silence(self, now: float) -> Message | None:
        """Returns the message `silent` once, when ranks have done no step for launch.hang_timeout; None otherwise."""
        if self._silent_sent or not (silent := self._steps.silent(self.signs, now)):
            return None
        self._silent_sent = True
        return {"type": "silent", "ranks": [self._first_rank + place for place in silent]}

    def take_stacks(self, pids: Sequence[int]) -> Message:
        """Takes the stacks of this agent's ranks, and saves them among the logs. Returns the message `stacks`.

        pids: process ids, by the index of the rank among those of this agent; GONE for a rank that has ended.
        """
        ranks = [self._first_rank + place for place in range(self._ranks)]
        recorded = self._context.recorders.take(ranks) if self._context.recorders else [""] * len(ranks)
        reports = []
        for place, (state, stack) in enumerate(self._context.stacks.take(pids)):
            rank = ranks[place]
            frame = hangs.newest_frame(stack)
            reports.append(hangs.Report(rank, self._host, self.signs[place].step, state, frame, recorded[place]))
            text = stack or f"rank {rank} wrote no stack; its process is in state {state or 'gone'}\n"
            with contextlib.suppress(OSError):
                path = self._context.attempt.logs / log_name(rank, self._round, "stacks")
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(text)
        return {"type": "stacks", "reports": [vars(report) for report in reports]}

    def processes(self, pids: Sequence[int]) -> list[Process]:
        """Returns the processes of this agent's ranks, for `attach`. `pids`: as in `take_stacks`."""
        return [
            Process(self._first_rank + place, pids[place], sign.step, self._context.environments[place])
            for place, sign in enumerate(self.signs)
        ]

    def _printed(self) -> list[int]:
        sizes = []
        for place in range(self._ranks):
            total = 0
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    name = log_name(self._first_rank + place, self._round, stream)
                    total += os.stat(self._context.attempt.logs / name).st_size
            sizes.append(total)
        return sizes
