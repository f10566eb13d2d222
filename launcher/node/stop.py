"""Every reason to stop early becomes a flag, and all ranks agree on it at a step boundary.

A signal handler sets the flag and does nothing else: whatever it interrupts (a collective, a data loader) goes on. A
rank that hears nothing (PBS signals one node only) hears it from the others: the flags of all ranks are combined by one
small all_reduce in a gloo group of its own. That one runs in the background from one step boundary to the next, and
only every few steps when steps are short, so that it costs next to nothing; see `interval`.

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
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from launcher.node import pulse
from launcher.node.events import Events, current_attempt
from launcher.node.settings import Settings, settings
from launcher.worker.torch_compat import destroy_without_gil

if TYPE_CHECKING:
    from launcher.node.process_group import Env

FILES_INTERVAL = 1.0  # seconds between two looks for RUN/stop and RUN/save
LATENCY = 0.5  # seconds in which a stop is agreed on, if a step is shorter than that
SLOW_STEP = 0.1  # seconds; steps longer than this agree at once, since it costs them next to nothing
SAVES = 2  # the lead allows for this many saves of the longest duration so far, and
MARGIN = 5.0  # for these seconds
RAREST = 64  # steps between two agreements at most, for steps may become longer
_RANKS = 1 << 32


class Cause(IntEnum):
    """Why to stop; of several the highest is told."""

    NONE = 0
    DEADLINE = 1
    WARNING = 2
    FILE = 3
    TERM = 4


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


class Stop:
    """The stop flag of one rank. All ranks make one, at the same point of their program."""

    def __init__(self, env: Env, run: Settings | None = None, *, group: dist.ProcessGroup | None = None) -> None:
        """Installs the handlers and tells the agent that this rank leaves by itself when it is told to stop.

        Args:
            env: this rank.
            run: the run's settings; None: those of the run that this process belongs to.
            group: of all ranks, for tensors of the CPU; None: a new one.
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
        self._group = group
        if group is None and env.world_size > 1 and env.backend != "mpi":  # MPI's ranks have no store to make one with
            seconds = self._settings.timeout
            patience = None if seconds is None else timedelta(seconds=seconds)
            self._group = dist.new_group(backend="gloo", timeout=patience)
            destroy_without_gil(self._group)
        self._slot = pulse.mine()
        self._work: dist.Work | None = None
        self._flags = torch.zeros(3, dtype=torch.int64)
        self._interval, self._countdown = 0, 0
        self._last: float | None = None
        self._step_time = 0.0
        self._next_look, self._files = 0.0, (False, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._told)
        if self._slot is not None:
            self._slot.listen()

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
            verdict = self._verdict(self._opinion(now, save_due))
        elif self._interval == 0:
            verdict = self._agree_at_once(now, save_due)
        else:
            verdict = self._agree_in_background(now, save_due)
        if verdict.stop is not None and self._env.rank == 0:
            Events(current_attempt(), "stop")("stop", cause=verdict.stop, step=step)
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
        """Ends an agreement that is under way. All ranks call it."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def _told(self, number: int, _: object) -> None:
        term = number in (signal.SIGTERM, signal.SIGINT)
        self._asked = max(self._asked, Cause.TERM if term else Cause.WARNING)

    def _agree_at_once(self, now: float, save_due: bool) -> Verdict:
        flags = self._opinion(now, save_due)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return self._verdict(flags)

    def _agree_in_background(self, now: float, save_due: bool) -> Verdict:
        verdict = GO_ON
        if self._work is not None:
            self._work.wait()
            self._work = None
            verdict = self._verdict(self._flags)
            if verdict is not GO_ON or self._interval == 0:
                return verdict
        self._countdown -= 1
        if self._countdown <= 0:
            self._countdown = self._interval
            self._flags = self._opinion(now, save_due)
            self._work = dist.all_reduce(self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return verdict

    def _opinion(self, now: float, save_due: bool) -> torch.Tensor:
        """This rank's flags, int64 [3]: cause and rank, whether to save, and the interval it wants."""
        cause = self._asked
        if self._ends is not None and now >= self._ends - self._lead:
            cause = max(cause, Cause.DEADLINE)
        looks = self._env.rank == 0 or self._env.world_size == 1  # one that is alone hears of it from nobody else
        if looks and now >= self._next_look:
            self._next_look = now + FILES_INTERVAL
            self._files = self._is_there("stop"), self._is_there("save")
        stop_file, save_file = self._files
        if stop_file:
            cause = max(cause, Cause.FILE)
        wanted = interval(self._step_time) if self._last is not None else 0
        wanted = min(wanted, 2 * max(self._interval, 1))  # a first step may be no measure
        who = _RANKS - 1 - self._env.rank  # of several the lowest rank is told
        return torch.tensor([cause * _RANKS + who if cause else 0, int(save_due or save_file), wanted])

    def _verdict(self, flags: torch.Tensor) -> Verdict:
        stop, save, self._interval = flags.tolist()
        if save and self._files[1]:
            self._files = self._files[0], False
            with contextlib.suppress(OSError):
                self._file("save").unlink()
        if not stop and not save:
            return GO_ON
        return Verdict(self._words(*divmod(stop, _RANKS)) if stop else None, bool(save))

    def _words(self, cause: int, who: int) -> str:
        rank = _RANKS - 1 - who
        host = self._env.hosts[self._env.node_of(rank)] if self._env.hosts else self._env.host
        return {
            Cause.DEADLINE: "its time is nearly up",
            Cause.WARNING: f"the scheduler's warning signal (rank {rank} on {host})",
            Cause.FILE: "its stop file",
            Cause.TERM: f"told to stop (rank {rank} on {host})",
        }[Cause(cause)]

    def _file(self, name: str) -> Path:
        assert self._settings.run_dir is not None
        return self._settings.run_dir / name

    def _is_there(self, name: str) -> bool:
        return self._settings.run_dir is not None and os.path.exists(self._file(name))  # False also for a stale handle
