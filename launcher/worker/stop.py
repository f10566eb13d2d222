"""Stop requests in ranks: whether a training should stop after this step.

A signal may reach some ranks only (PBS signals one node), so the ranks combine their flags at step boundaries: those
with an agent through their agents (`stop_agreement`), others (`init()` under srun, mpiexec or torchrun) by one small
all_reduce in a gloo group of its own.

| cause | source | known to |
|---|---|---|
| the time is nearly up | the deadline of the attempt, less the time for a save | every rank |
| warning signal | Slurm's --signal (USR1; USR2 counts as well) | the ranks of srun's tasks |
| stop file | `touch RUN/stop` | rank 0 |
| SIGTERM | preemption, cancellation | at least the first node |
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from launcher.config.scheduler_table import settings_class
from launcher.config.schema import BestIs, ResumeHow
from launcher.errors import LauncherError
from launcher.failures import messages
from launcher.failures.codes import StopReason
from launcher.formatting import log_line
from launcher.plan.plan import Checkpoint, Resume, Train
from launcher.runs.directory import Events, current_attempt
from launcher.runs.events import Stop as StopEvent
from launcher.runs.history import Experience, experience
from launcher.runs.job_file import time_left
from launcher.schedulers import registry
from launcher.worker import heartbeat, process_group
from launcher.worker.debugger import FOREVER
from launcher.worker.process_group import Env
from launcher.worker.stop_agreement import BoundaryAction, Cause, Want, decide

FILES_INTERVAL = 1.0  # seconds between two checks for RUN/stop and RUN/save
SAVES = 2  # a stop before a deadline comes early enough for this many saves of the longest duration so far,
MARGIN = 5.0  # plus these seconds
LOOK = 0.001  # seconds between two polls of a rank that waits for the commit of a stop or a save
_RANKS = 1 << 32
_REASONS = {
    Cause.DEADLINE: StopReason.TIME_LIMIT,
    Cause.WARNING: StopReason.WARNING_SIGNAL,
    Cause.FILE: StopReason.STOP_FILE,
    Cause.TERM: StopReason.SIGNAL,
}


@dataclass(frozen=True)
class StopVerdict:
    stop: str | None = None  # the stop reason as text, the same on every rank; None: continue
    save: bool = False  # whether to save now, because a rank's save is due or RUN/save exists


class _ThroughAgents:
    def __init__(self, slot: heartbeat.RankSlot) -> None:
        self._slot, self._stopped = slot, False
        self._state = replace(slot.stop.read(), closed=False)  # an earlier Stop of this process has counted boundaries
        self._slot.stop.write(self._state)

    def want(self, cause: Cause) -> None:
        """Shows the agent a cause at once, not only at the next boundary. For use in a signal handler."""
        if not (self._stopped or self._state.closed):
            self._update(cause=max(cause, self._state.cause))

    def boundary(self, want: Want, step_time: float) -> Want:
        """Counts a boundary, and returns what all ranks do there; waits if a proposal for this boundary is open."""
        self._update(
            boundary=self._state.boundary + 1, cause=want.cause, save=want.save, step_time=step_time, closed=False
        )  # fmt: skip
        while True:
            shown = self._slot.agent.proposal()
            if shown is not None:
                proposal, committed = shown
                then = decide(self._state.boundary, self._state.acted, proposal, committed)
                if proposal is None or then is BoundaryAction.CONTINUE:
                    return Want()
                if then is BoundaryAction.ACT:
                    self._update(acted=proposal.number, cause=Cause.NONE, save=False)
                    self._stopped = proposal.want.cause is not Cause.NONE
                    return proposal.want
                accepted = then is not BoundaryAction.REFUSE
                if (self._state.answered, self._state.accepted) != (proposal.number, accepted):
                    self._update(answered=proposal.number, accepted=accepted)
                if then is not BoundaryAction.WAIT:
                    return Want()
            time.sleep(LOOK)

    def close(self) -> None:
        self._update(closed=True, cause=Cause.NONE, save=False)

    def _update(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self._slot.stop.write(self._state)


class StopFlag:
    """A rank's stop flag, and its agreement with other ranks. All ranks make one at the same point of the program."""

    def __init__(self, env: Env, run: Settings | None = None) -> None:
        # Declares to the agent that this rank checks for stop requests and exits
        self._env, self._pid = env, os.getpid()
        self._settings = settings() if run is None else run
        self._cause = Cause.NONE
        self._lead = float(self._settings.resume.lead)
        self._ends: float | None = None
        self._max_lead = math.inf  # seconds
        if self._settings.deadline is not None:  # converted to the monotonic clock
            left = self._settings.deadline - time.time()
            self._ends, self._max_lead = time.monotonic() + left, max(self._lead, left / 2)
        self._slot = heartbeat.mine()
        self._agents: _ThroughAgents | None = None
        # A program's process group may contain only some of the run's ranks, which then agree among themselves.
        if self._slot is not None and 1 < env.world_size == self._slot.agent.world_size:
            self._agents = _ThroughAgents(self._slot)
        self._group: dist.ProcessGroup | None = None
        mpi = env.backend == "mpi"  # without a store to make a group with
        if env.world_size > 1 and self._agents is None and not mpi:
            self._group = process_group.gloo_group(env.world_size, self._settings.timeout)
        self._agreed = Want()
        self._last: float | None = None
        self._step_time = 0.0
        self._next_look, self._files = 0.0, (False, False)
        self._handlers: dict[int, Any] = {}  # those that were there before
        self._closed = False  # outside of a run
        self.take_signals()
        if self._slot is not None:
            self._slot.listen()

    def take_signals(self) -> None:
        """Installs the signal handlers. Call it again if other code may have replaced them."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            self._handlers.setdefault(number, signal.getsignal(number))
            signal.signal(number, self._on_signal)

    def boundary(self, step: int, *, save_due: bool = False) -> StopVerdict:
        """Sends a heartbeat, and returns what to do between two steps. All ranks must call it after every step.

        save_due: whether this rank wants to save, until the verdict is to save. One rank is enough for all to save.
        """
        now = time.monotonic()
        if self._slot is not None:
            self._slot.listen()  # again, if a training of this process has ended
            self._slot.beat(step)
        if self._last is not None:
            # A moving average with weight 1/2, so that one slow step (a save, an evaluation) is soon forgotten.
            self._step_time = (self._step_time + now - self._last) / 2
        want = self._wanted(now, save_due)
        if self._agents is not None:
            want = self._agents.boundary(want, self._step_time)
        elif self._env.world_size > 1:
            want = self._combined(want)
        verdict = self._verdict(want)
        if verdict.stop is not None and self._env.rank == 0:
            Events(current_attempt(), "stop")(replace(self._stop_event(), step=step))
        self._last = time.monotonic()
        return verdict

    def save_took(self, seconds: float) -> None:
        """Makes the stop before the deadline early enough for saves of this duration, up to half of the attempt."""
        wanted = SAVES * seconds + MARGIN
        if wanted > self._max_lead:
            if self._env.rank == 0 and self._lead < self._max_lead:
                takes = f"a save takes {seconds:.0f} s, too long for an attempt of {2 * self._max_lead:.0f} s"
                log_line(f"{takes}: the last one may be cut off; raise `time`", sys.stdout)
            wanted = self._max_lead
        self._lead = max(self._lead, wanted)

    def close(self) -> None:
        """Declares that the training is over: this rank's steps are watched no more. All ranks call it as `leave`.

        Outside of a run, signals do again what they did before: Ctrl-C ends what follows the training.
        """
        self.leave()
        if self._slot is not None:
            self._slot.close()
        elif self._settings.run_dir is None:
            self._closed = True
            for number in self._handlers:
                if signal.getsignal(number) == self._on_signal and (handler := self._before(number)) is not None:
                    signal.signal(number, handler)

    def _before(self, number: int) -> Any:
        # Past the handlers of stop flags that were closed while this one was open
        handler = self._handlers[number]
        flag = getattr(handler, "__self__", None)
        return flag._before(number) if isinstance(flag, StopFlag) and flag._closed else handler

    def leave(self) -> None:
        """Declares that this rank has no more boundaries. All ranks call it after the same number of boundaries."""
        if self._agents is not None:
            self._agents.close()

    def _on_signal(self, number: int, _: object) -> None:
        if os.getpid() != self._pid:  # a process that this rank has forked, which has the handler as well
            if number == signal.SIGTERM:  # by which `Pool` and `Process.terminate` end it
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        term = number in (signal.SIGTERM, signal.SIGINT)
        self._cause = max(self._cause, Cause.TERM if term else Cause.WARNING)
        if self._agents is not None:
            self._agents.want(self._cause)

    def _wanted(self, now: float, save_due: bool) -> Want:
        cause = self._cause
        ahead = 0.0 if self._agents is None else self._step_time  # agents agree on a boundary after this one
        if self._ends is not None and now + ahead >= self._ends - self._lead:
            cause = max(cause, Cause.DEADLINE)
        looks = self._env.rank == 0 or self._env.world_size == 1
        if looks and now >= self._next_look:
            self._next_look = now + FILES_INTERVAL
            self._files = self._is_there("stop"), self._is_there("save")
        stop_file, save_file = self._files
        if stop_file:
            cause = max(cause, Cause.FILE)
        return Want(cause, self._env.rank if cause else 0, save_due or save_file)

    def _combined(self, want: Want) -> Want:
        who = _RANKS - 1 - want.rank  # so that the maximum over ranks chooses the lowest rank
        flags = torch.tensor([want.cause * _RANKS + who if want.cause else 0, int(want.save)], device="cpu")
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        stop, save = flags.tolist()
        cause, who = divmod(stop, _RANKS)
        return Want(Cause(cause), _RANKS - 1 - who if stop else 0, bool(save))

    def _verdict(self, agreed: Want) -> StopVerdict:
        if agreed.save and self._files[1]:
            self._files = self._files[0], False
            assert self._settings.run_dir is not None
            with contextlib.suppress(OSError):
                (self._settings.run_dir / "save").unlink()
        if not agreed.cause:
            return StopVerdict(None, agreed.save)
        self._agreed = agreed
        return StopVerdict(messages.of_stop(self._stop_event()), agreed.save)

    def _stop_event(self) -> StopEvent:
        env, rank = self._env, self._agreed.rank
        host = env.hosts[env.node_of(rank)] if env.hosts else env.host
        return StopEvent(reason=_REASONS[self._agreed.cause], rank=rank, host=host)

    def _is_there(self, name: str) -> bool:
        run_dir = self._settings.run_dir
        return run_dir is not None and os.path.exists(run_dir / name)  # False also for a stale handle


_stop: StopFlag | None = None
_stopped: StopVerdict | None = None
_steps = 0


def should_stop(step: int | None = None) -> bool:
    """Returns whether to save now and exit with code 75, because the attempt is to end. Call it after each step.

    All ranks of the process group must make the same calls: it returns True on all of them after the same step. A
    process without a process group decides alone.

    The first call replaces the handlers of SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, and declares to the agent that this
    rank exits after a stop request: the agent does not end it, and counts it as hung if it does not call again within
    launch.hang_timeout.

    Args:
        step: steps of the run that are done, including earlier attempts, for `status`; None: the calls in this process
            are counted instead.
    """
    return boundary(step).stop is not None


stopping = should_stop  # its former name


def boundary(step: int | None = None) -> StopVerdict:
    """Like `should_stop`, but returns also the stop reason, and whether to save and continue (RUN/save exists)."""
    global _stopped, _steps
    if _stopped is not None:
        return _stopped
    stop = listen()
    _steps = _steps + 1 if step is None else step
    if step is not None:  # a count of calls is no step of the run
        process_group.report_step(step)
    verdict = stop.boundary(_steps)
    if verdict.stop is not None:
        _stopped = verdict
        stop.leave()
    return verdict


def listen() -> StopFlag:
    """Returns this process's stop flag; all ranks make the first call, which sets handlers, at the same point."""
    global _stop
    if _stop is None:
        _stop = StopFlag(process_group.here())
    return _stop


# Outside of a run:
CHECKPOINT = Checkpoint(
    every=None, every_steps=None, keep=2, best=None, best_is=BestIs.max.value, dir="", background=True, verify=True,
    read_timeout=300, timeout=3600, max_failures=5, check_replicas=True, start_over=False,
)  # fmt: skip
NONE_YET = Experience()
RESUME = Resume(how=ResumeHow.never.value, max_attempts=1, lead=0, strict=False)
TRAIN = Train(invariant=False, micro_batches=8)


@dataclass(frozen=True)
class Settings:
    """A run's settings for trainings. The defaults apply outside of a run."""

    checkpoint: Checkpoint = CHECKPOINT  # checkpoint, resume, train: sections of the plan
    resume: Resume = RESUME
    train: Train = TRAIN
    run_dir: Path | None = None  # the run directory; None outside of a run
    attempt: int = 0  # index of this attempt, from 0
    nodes: int = 1  # number of nodes with ranks
    failures: Experience = NONE_YET  # of the user's runs on this cluster; on rank 0
    timeout: float | None = None  # seconds for each collective; None: torch's default
    # when the scheduler ends the attempt, in seconds since the epoch by this machine's clock; None: there is no time
    # limit, or this rank only estimates it and leaves it to rank 0
    deadline: float | None = None

    @property
    def checkpoint_dir(self) -> Path | None:
        return Path(self.checkpoint.dir) if self.checkpoint.dir else None


def settings() -> Settings:
    """Returns the settings of this process's run, or the defaults; raises RunError for an unreadable record."""
    attempt = current_attempt()
    if attempt is None:
        return Settings()
    plan, left = attempt.run.plan(), time_left(os.environ)
    first = os.environ.get("RANK", "0") == "0"
    watches = left is not None and (left.sure or first)
    return Settings(
        plan.checkpoint, plan.resume, plan.train, run_dir=attempt.run.path, attempt=attempt.number,
        nodes=plan.nodes - plan.spares,
        failures=experience(attempt.run.path, plan.cluster.name, memory=plan.checkpoint.memory != 0)
        if first else NONE_YET,
        timeout=FOREVER if plan.debugs else float(plan.launch.timeout),  # others wait for a rank at a breakpoint
        deadline=time.time() + left.seconds if left is not None and watches else None,
    )  # fmt: skip


def how_to_exclude(hosts: str) -> str:
    """Returns how `resume` can exclude nodes from this run: an override, what to use instead, or nothing."""
    attempt = current_attempt()
    if attempt is None:
        return ""
    try:
        plan = attempt.run.plan()
        if override := registry.scheduler(plan.cluster.scheduler).without(hosts, plan.cluster.settings):
            return override
        settings = settings_class(plan.cluster.scheduler)
    except LauncherError:  # a measurement must not fail for want of this text
        return ""
    return "" if settings is None else settings.INSTEAD.get("exclude", "")
