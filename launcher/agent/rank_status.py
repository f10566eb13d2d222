"""Looks at the ranks of one agent from time to time: their heartbeats, output, step times, and stacks if they hang."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.agent.logs import log_name
from launcher.agent.signals import Signals
from launcher.agent.stragglers import Paces
from launcher.attach.request_handler import GONE, Process, RequestHandler
from launcher.failures import text
from launcher.log_line import log_line
from launcher.rendezvous.channel import Message
from launcher.rendezvous.members import Rendezvous
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import Resized
from launcher.spec.plan import JobPlan
from launcher.worker import hangs
from launcher.worker.flight_recorder import Recorders
from launcher.worker.hangs import Activity, StepWatch
from launcher.worker.heartbeat import Pulse, Sign


@dataclass
class Means:
    """What an agent keeps from one round to the next.

    Attributes:
        plan, attempt, events, signals: see their classes.
        pulse, stacks: memory and files that its ranks write to.
        request_handler: serves requests of `attach` commands.
        environments: variables of each rank, for those that attach to it.
        recorders: NCCL's flight recorders of its ranks; None: they use no GPUs.
    """

    plan: JobPlan
    attempt: directory.Attempt
    events: Events
    signals: Signals
    pulse: Pulse
    stacks: hangs.Stacks
    request_handler: RequestHandler
    environments: Sequence[Mapping[str, str]] = ()
    recorders: Recorders | None = None

    def report_resized(self, resized: Resized) -> None:
        """Writes the event and the log line about agents that do not take part any more, or came back."""
        self.events(resized)
        log_line(text.of_resized(resized))


class RankStatus:
    """What one agent sees of its ranks in one round. `place` is the number of a rank among those of its agent.

    Attributes:
        signs: the last signs of life of each rank.
        step: most steps of the run that any rank has done; -1: none.
        listened: whether a rank has listened for stop requests.
    """

    def __init__(self, means: Means, rendezvous: Rendezvous, place: int, round_number: int, now: float) -> None:
        """
        Args:
            means: the agent's.
            rendezvous: the agents of the round.
            place: place of this agent among them.
            round_number: number of the round.
            now: seconds by the supervisor's clock, as in all methods.
        """
        plan, own = means.plan, rendezvous.members[place]
        self._means, self._ranks, self._host, self._round = means, own.ranks, own.host, round_number
        self._first_rank = rendezvous.first_rank(place)
        self.signs: list[Sign] = means.pulse.signs()
        self.step, self.listened = -1, False
        self._next_look = 0.0
        self._steps = StepWatch(math.inf if plan.debugs else plan.launch.hang_timeout)
        self._silent_sent = False
        self._activity = Activity(own.ranks, now, min(hangs.LOOK, plan.launch.idle_timeout / 4))
        self._paces = Paces(plan, means.attempt, means.events, rendezvous, place, round_number)

    def read(self) -> None:
        """Reads the signs of life of all ranks."""
        self.signs = self._means.pulse.signs()
        self.listened = self.listened or any(sign.listens for sign in self.signs)
        self.step = max(self.step, *(sign.step for sign in self.signs))

    def due(self, now: float) -> bool:
        """Returns whether `measure` and `look_for_silence` are due."""
        if now < self._next_look:
            return False
        launch = self._means.plan.launch
        self._next_look = now + min(1.0, launch.hang_timeout / 4, launch.heartbeat / 4)
        return True

    def joined(self, ended: Mapping[int, Any]) -> bool:
        """Returns whether all ranks have joined the process group; `ended`: the places of those that have ended."""
        return all(sign.joined or place in ended for place, sign in enumerate(self.signs))

    def measure(self, pids: Sequence[int], now: float) -> dict[str, Any]:
        """Returns the fields `missing` and `idle` of a heartbeat; `pids`: process ids by place, GONE if ended."""
        missing = [
            self._first_rank + place
            for place, sign in enumerate(self.signs)
            if not sign.arrived and pids[place] != GONE
        ]
        return {"missing": missing, "idle": round(self._activity.idle(self.signs, pids, self._printed(), now), 1)}

    def pace(self, now: float) -> dict[str, Any] | None:
        """Returns step times to send to the leader; None: none are due. A rank in a debugger is not a slow one."""
        return None if self._means.plan.debugs else self._paces.look(self._means.pulse.paces(), now)

    def judge_paces(self, paces: Sequence[dict[str, Any]]) -> None:
        """On the leader: takes the step times of all agents."""
        self._paces.judge(paces)

    def silence(self, now: float) -> Message | None:
        """Returns the message about ranks that do no steps, once; None: there are none."""
        if self._silent_sent or not (silent := self._steps.silent(self.signs, now)):
            return None
        self._silent_sent = True
        return {"type": "silent", "ranks": [self._first_rank + place for place in silent]}

    def take_stacks(self, pids: Sequence[int]) -> Message:
        """Saves the stacks of all ranks in their logs, and returns the message with them."""
        ranks = [self._first_rank + place for place in range(self._ranks)]
        recorded = self._means.recorders.take(ranks) if self._means.recorders else [""] * len(ranks)
        reports = []
        for place, (state, stack) in enumerate(self._means.stacks.take(pids)):
            rank = ranks[place]
            reports.append(hangs.Report(rank, self._host, self.signs[place].step, state, stack, recorded[place]))
            text = stack or f"rank {rank} wrote no stack; its process is in state {state or 'gone'}\n"
            with contextlib.suppress(OSError):
                path = self._means.attempt.logs / log_name(rank, self._round, "stacks")
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(text)
        return {"type": "stacks", "reports": [vars(report) for report in reports]}

    def processes(self, pids: Sequence[int]) -> list[Process]:
        """Returns the processes of all ranks, for `attach`."""
        return [
            Process(self._first_rank + place, pids[place], sign.step, self._means.environments[place])
            for place, sign in enumerate(self.signs)
        ]

    def _printed(self) -> list[int]:
        """Returns how many bytes each rank has printed."""
        sizes = []
        for place in range(self._ranks):
            total = 0
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    name = log_name(self._first_rank + place, self._round, stream)
                    total += os.stat(self._means.attempt.logs / name).st_size
            sizes.append(total)
        return sizes
