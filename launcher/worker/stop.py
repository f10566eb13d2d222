"""Every reason to stop early becomes a flag, and all ranks agree on it at a step boundary.

A signal handler sets the flag and does nothing else: whatever it interrupts (a collective, a data loader) goes on. A
rank that hears nothing (PBS signals one node only) hears it from the others:

- Where ranks have an agent, they agree through the agents, and a boundary costs some microseconds; see
  `launcher.worker.stop_agreement`. Only at the boundary where all act a rank may have to wait.
- Elsewhere (`init()` under srun, mpiexec or torchrun) one small all_reduce in a gloo group of its own combines the
  flags of all ranks. It runs in the background from one boundary to the next, and only every few steps when steps are
  short, so that it costs next to nothing; see `interval`.

| cause | told by | known to |
|---|---|---|
| time is nearly up | the deadline of the attempt, less the time that a save takes | every rank |
| warning signal | Slurm's --signal (USR1; USR2 counts as well) | ranks of srun's tasks |
| stop file | `touch RUN/stop` | rank 0 |
| SIGTERM | preemption, cancellation | the first node at least |
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from launcher.failures import text
from launcher.failures.codes import StopReason
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Stop as StopEvent
from launcher.torch_compat import destroy_without_gil
from launcher.worker import heartbeat
from launcher.worker.settings import Settings, settings
from launcher.worker.stop_agreement import Cause, Then, Want, decide

if TYPE_CHECKING:
    from launcher.worker.process_group import Env

FILES_INTERVAL = 1.0  # seconds between two looks for RUN/stop and RUN/save
LATENCY = 0.5  # seconds in which a stop is agreed on, if a step is shorter than that
SLOW_STEP = 0.1  # seconds; steps longer than this agree at once, since it costs them next to nothing
SAVES = 2  # the lead allows for this many saves of the longest duration so far, and
MARGIN = 5.0  # for these seconds
RAREST = 64  # steps between two agreements at most, for steps may become longer
LOOK = 0.001  # seconds between two looks of a rank that waits for the commit of a stop or a save
_RANKS = 1 << 32
_REASONS = {
    Cause.DEADLINE: StopReason.TIME_LIMIT,
    Cause.WARNING: StopReason.WARNING_SIGNAL,
    Cause.FILE: StopReason.STOP_FILE,
    Cause.TERM: StopReason.SIGNAL,
}


@dataclass(frozen=True)
class Verdict:
    """What all ranks have agreed on.

    Attributes:
        stop: the cause in words, the same on every rank; None: go on.
        save: a save is wanted now, by a rank for which it is due or by RUN/save.
    """

    stop: str | None = None
    save: bool = False


GO_ON = Verdict()


def interval(step_time: float) -> int:
    """Steps between two agreements; 0: at every step, and the step waits for it. Pure.

    | steps | agreements |
    |---|---|
    | longer than SLOW_STEP | at every boundary, at once |
    | shorter | in the background, one each LATENCY, or RAREST steps if those are shorter |

    Args:
        step_time: seconds of a step.
    """
    if step_time > SLOW_STEP:
        return 0
    return max(1, min(int(LATENCY / max(step_time, 1e-6)), RAREST))


class _ThroughAgents:
    """One rank's part in the agreement through the agents."""

    def __init__(self, slot: heartbeat.Slot) -> None:
        self._slot, self._pid, self._stopped = slot, os.getpid(), False
        self._state = replace(slot.stop.read(), closed=False)  # this process may have come to boundaries before
        self._slot.stop.write(self._state)

    def want(self, cause: Cause) -> None:
        """For a signal handler: the agent need not wait for the next boundary to see it."""
        forked = os.getpid() != self._pid  # a data loader's worker, which is no rank
        if not (forked or self._stopped or self._state.closed):
            self._update(cause=max(cause, self._state.cause))

    def boundary(self, want: Want, step_time: float) -> Want:
        """What all ranks do at this boundary.

        Args:
            want: what this rank wants.
            step_time: seconds of a step; 0: not known.
        """
        self._update(
            boundary=self._state.boundary + 1, cause=want.cause, save=want.save, step_time=step_time, closed=False
        )  # fmt: skip
        while True:
            shown = self._slot.agent.proposal()
            if shown is not None:
                proposal, committed = shown
                then = decide(self._state.boundary, self._state.acted, proposal, committed)
                if proposal is None or then is Then.GO_ON:
                    return Want()
                if then is Then.ACT:
                    self._update(acted=proposal.number, cause=Cause.NONE, save=False)
                    self._stopped = proposal.want.cause is not Cause.NONE
                    return proposal.want
                accepted = then is not Then.REFUSE
                if (self._state.answered, self._state.accepted) != (proposal.number, accepted):
                    self._update(answered=proposal.number, accepted=accepted)
                if then is not Then.WAIT:
                    return Want()
            time.sleep(LOOK)

    def close(self) -> None:
        """This rank comes to no more boundaries."""
        self._update(closed=True, cause=Cause.NONE, save=False)

    def _update(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self._slot.stop.write(self._state)


class Stop:
    """The stop flag of one rank. All ranks make one, at the same point of their program."""

    def __init__(self, env: Env, run: Settings | None = None) -> None:
        """Installs the handlers and tells the agent that this rank leaves by itself when it is told to stop.

        Args:
            env: this rank.
            run: the run's settings; None: those of the run that this process belongs to.
        """
        self._env = env
        self._settings = settings() if run is None else run
        self._asked = Cause.NONE
        self._lead = self._settings.lead
        self._ends: float | None = None
        self._most = math.inf  # seconds of lead
        if self._settings.deadline is not None:  # by a clock that nobody sets
            left = self._settings.deadline - time.time()
            self._ends, self._most = time.monotonic() + left, max(self._lead, left / 2)
        self._slot = heartbeat.mine()
        self._agents: _ThroughAgents | None = None
        # A program may have made a process group of a part of the ranks, which agree among themselves.
        if self._slot is not None and 1 < env.world_size == self._slot.agent.world_size:
            self._agents = _ThroughAgents(self._slot)
        self._group: dist.ProcessGroup | None = None
        mpi = env.backend == "mpi"  # its ranks have no store to make a group with
        if env.world_size > 1 and self._agents is None and not mpi:
            seconds = self._settings.timeout
            self._group = dist.new_group(
                backend="gloo", timeout=None if seconds is None else timedelta(seconds=seconds)
            )
            destroy_without_gil(self._group)
        self._work: dist.Work | None = None
        self._agreed = Want()
        self._flags = torch.zeros(3, dtype=torch.int64)
        self._interval, self._countdown = 0, 0
        self._last: float | None = None
        self._step_time = 0.0
        self._next_look, self._files = 0.0, (False, False)
        self.take_signals()
        if self._slot is not None:
            self._slot.listen()

    def take_signals(self) -> None:
        """Installs the handlers, again where somebody else's have taken their place since."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._told)

    def boundary(self, step: int, *, save_due: bool = False) -> Verdict:
        """What to do between two steps. All ranks must call it after every step, with equal steps.

        Args:
            step: steps of the run that are done.
            save_due: this rank finds that it is time to save; one such rank is enough, and must go on saying so until
                the verdict is to save.
        """
        now = time.monotonic()
        if self._slot is not None:
            self._slot.beat(step)
        if self._last is not None:
            # Half of what is new, so that one slow step (a save, an evaluation) is soon forgotten.
            self._step_time = (self._step_time + now - self._last) / 2
        if self._env.world_size == 1:
            verdict = self._verdict(self._wanted(now, save_due))
        elif self._agents is not None:
            verdict = self._verdict(self._agents.boundary(self._wanted(now, save_due), self._step_time))
        elif self._interval == 0:
            verdict = self._agree_at_once(now, save_due)
        else:
            verdict = self._agree_in_background(now, save_due)
        if verdict.stop is not None and self._env.rank == 0:
            Events(current_attempt(), "stop")(self._event(verdict.stop, step))
        self._last = time.monotonic()
        return verdict

    def save_took(self, seconds: float) -> None:
        """The next stop for lack of time comes early enough for saves of this duration.

        At most half of the attempt is left for that: rather than to work for a moment only, it says that its time is
        too short.
        """
        wanted = SAVES * seconds + MARGIN
        if wanted > self._most:
            if self._env.rank == 0 and self._lead < self._most:
                print(
                    f"launcher: a save takes {seconds:.0f} s, too long for an attempt of {2 * self._most:.0f} s: the "
                    "last one may be cut off; raise `time`", flush=True,
                )  # fmt: skip
            wanted = self._most
        self._lead = max(self._lead, wanted)

    def close(self) -> None:
        """This rank comes to no more boundaries. All ranks call it after equally many."""
        if self._agents is not None:
            self._agents.close()
        if self._work is not None:
            self._work.wait()
            self._work = None

    def _told(self, number: int, _: object) -> None:
        term = number in (signal.SIGTERM, signal.SIGINT)
        self._asked = max(self._asked, Cause.TERM if term else Cause.WARNING)
        if self._agents is not None:
            self._agents.want(self._asked)

    def _agree_at_once(self, now: float, save_due: bool) -> Verdict:
        flags = self._flags_of(self._wanted(now, save_due))
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return self._combined(flags)

    def _agree_in_background(self, now: float, save_due: bool) -> Verdict:
        verdict = GO_ON
        if self._work is not None:
            self._work.wait()
            self._work = None
            verdict = self._combined(self._flags)
            if verdict is not GO_ON or self._interval == 0:
                return verdict
        self._countdown -= 1
        if self._countdown <= 0:
            self._countdown = self._interval
            self._flags = self._flags_of(self._wanted(now, save_due))
            self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return verdict

    def _wanted(self, now: float, save_due: bool) -> Want:
        """What this rank wants."""
        cause = self._asked
        ahead = 0.0 if self._agents is None else self._step_time  # what is wanted now happens at a later boundary
        if self._ends is not None and now + ahead >= self._ends - self._lead:
            cause = max(cause, Cause.DEADLINE)
        looks = self._env.rank == 0 or self._env.world_size == 1  # one that is alone hears of it from nobody else
        if looks and now >= self._next_look:
            self._next_look = now + FILES_INTERVAL
            self._files = self._is_there("stop"), self._is_there("save")
        stop_file, save_file = self._files
        if stop_file:
            cause = max(cause, Cause.FILE)
        return Want(cause, self._env.rank if cause else 0, save_due or save_file)

    def _flags_of(self, want: Want) -> torch.Tensor:
        """For an all_reduce, int64 [3]: cause and rank, whether to save, and the interval that this rank wants."""
        wanted = interval(self._step_time) if self._last is not None else 0
        wanted = min(wanted, 2 * max(self._interval, 1))  # a first step may be no measure
        who = _RANKS - 1 - self._env.rank  # of several the lowest rank is told
        return torch.tensor([want.cause * _RANKS + who if want.cause else 0, int(want.save), wanted])

    def _combined(self, flags: torch.Tensor) -> Verdict:
        stop, save, self._interval = flags.tolist()
        cause, who = divmod(stop, _RANKS)
        return self._verdict(Want(Cause(cause), _RANKS - 1 - who if stop else 0, bool(save)))

    def _verdict(self, agreed: Want) -> Verdict:
        if agreed.save and self._files[1]:
            self._files = self._files[0], False
            with contextlib.suppress(OSError):
                self._file("save").unlink()
        if not agreed:
            return GO_ON
        if agreed.cause:
            self._agreed = agreed
            return Verdict(text.of_stop(_REASONS[agreed.cause], agreed.rank, self._host_of(agreed.rank)), agreed.save)
        return Verdict(None, agreed.save)

    def _event(self, cause: str, step: int) -> StopEvent:
        """What is told of the stop that all ranks have agreed on."""
        rank = self._agreed.rank
        return StopEvent(
            cause=cause, reason=_REASONS[self._agreed.cause], rank=rank, host=self._host_of(rank), step=step
        )

    def _host_of(self, rank: int) -> str:
        return self._env.hosts[self._env.node_of(rank)] if self._env.hosts else self._env.host

    def _file(self, name: str) -> Path:
        assert self._settings.run_dir is not None
        return self._settings.run_dir / name

    def _is_there(self, name: str) -> bool:
        return self._settings.run_dir is not None and os.path.exists(self._file(name))  # False also for a stale handle
