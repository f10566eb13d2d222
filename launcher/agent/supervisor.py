"""Supervises one agent's ranks in one round, from their start until all of them have ended.

An event loop: ranks end, messages and signals arrive, deadlines pass. The leader decides for all agents what follows a
failure (see `leader`); this agent only reports it. On a stop request, ranks that can resume are asked to stop and
get time to save; others are ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from launcher import errors, processes
from launcher.agent import policy, rank_watch
from launcher.agent.leader_connection import LeaderConnection
from launcher.agent.policy import History, RoundEnd, RoundFailure, RoundVerdict, describe, judge, may_be_cut_off
from launcher.agent.rank_watch import AgentContext, RankStatus
from launcher.agent.workers import LeftOver, WorkerExit, WorkerGroup
from launcher.attach import GONE
from launcher.failures import messages
from launcher.failures.codes import FaultCode, StopReason
from launcher.files.json_types import from_json
from launcher.files.retried_reads import Ok, exists
from launcher.formatting import log_line
from launcher.plan.plan import JobPlan
from launcher.rendezvous.rounds import Rendezvous
from launcher.rendezvous.signed_channel import Message
from launcher.rendezvous.store import RanksStore
from launcher.runs import events, lease_and_locks
from launcher.runs.events import Fault, Place, Resized, Stop
from launcher.runs.job_file import time_left
from launcher.worker.stop_agreement import AgentSide

LATE = 3.0  # seconds for which an agent that had to kill its ranks waits for the others: its own SIGKILL may follow
ALONE = 1.0  # seconds for which an agent outlives its leader to blame it: a job that is killed loses all its agents
TICK = 0.1  # seconds between two polls of the ranks' output and heartbeats
AGREES = 0.005  # seconds between two polls while ranks have to answer whether they can stop at a step boundary
# Seconds to exit, at most, once the wall time is over: the job has to continue the run before it is killed, by PBS 10 s
# and by Slurm KillWait (30 s) after SIGTERM
AT_LIMIT = 5.0
DIES = 10.0  # seconds after SIGKILL in which a rank has to be gone, or its node is bad;
LOOKS = 0.5  # seconds for which it is looked whether it uses CPU time,
FREES = 120.0  # and most seconds in which the kernel may then free its memory: a TB, or what is pinned, takes long
DECIDED = 5.0  # seconds, besides launch.heartbeat, in which the leader has to decide about a failure


class Phase(Enum):
    RUNNING = "running"
    LEAVING = "leaving"  # other agents' ranks have exited to resume later; this agent's ranks get time to do so, too
    FAILED = "failed"  # a failure ended the round: this agent's ranks are being ended
    ENDING = "ending"  # this agent's ranks cannot resume, and are being ended because of a stop request
    ENDED = "ended"  # this agent's ranks have ended without a failure; other agents' ranks may still run


class Supervisor:
    """Supervises this agent's ranks in one round. A rank's `place` is its index among the ranks of its agent."""

    def __init__(
        self, context: AgentContext, connection: LeaderConnection, workers: WorkerGroup, rendezvous: Rendezvous,
        position: int, history: History, store: RanksStore | None = None, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        # workers: they have been started. position: in `rendezvous.members`; the agent at 0 is the leader, and may
        # serve the ranks' store
        plan = context.plan
        self._context, self._plan, self._connection, self._workers = context, plan, connection, workers
        self._rendezvous, self._history, self._clock, self._position = rendezvous, history, clock, position
        self._own, self._leads, self._store = rendezvous.members[position], position == 0, store
        self._first_rank = rendezvous.first_rank(position)
        self._status = RankStatus(context, rendezvous, position, history.round, clock())
        self._phase = Phase.RUNNING
        self._exits: dict[int, WorkerExit] = {}
        self._requests: dict[str, Stop] = {}  # by level: `stop` or `warning`
        self._returned: tuple[Place, ...] = ()  # agents that came back, for which a new round has to start
        self._verdict: RoundVerdict | None = None
        self._over = False
        self._next_lease_look = 0.0
        self._leader_lost: tuple[str, float] | None = None  # the reason, and when to decide about it
        self._signalled: set[tuple[int, signal.Signals]] = set()
        self._program_signalled: set[int] = set()
        self._stop_checker = (
            StopChecker(plan, os.environ, first=self._leads, now=clock()) if plan.program_resumes else None
        )
        self._grace = float(plan.launch.grace)
        self._stop_by: float | None = None  # when to kill the ranks that still run
        self._killed_at: float | None = None
        self._frees: tuple[float, float] | None = None  # CPU seconds of ranks that do not die, and when to give them up
        self._gives_up: float | None = None  # when to stop waiting for the leader or for other agents
        self._too_late = False
        self._terminated = False
        self._left_first = False  # a rank exited to resume later, and the other ranks were ended because of that
        self._more_output = False  # whether ranks have printed more than the last turn has copied
        self._memory = rank_watch.MemoryWatch()
        self._stops = AgentSide(self._first_rank)

    def run(self) -> policy.Done | policy.NextRound:
        if self._leads and self._connection.coordinator is not None:
            self._connection.coordinator.watch(self._clock())
        while True:
            outcome = self.turn(self._connection.poll(self.pause))
            if outcome is not None:
                return outcome

    def turn(self, messages: Sequence[Message]) -> policy.Done | policy.NextRound | None:
        """Handles what is new since the last call. Returns the outcome; None: none yet. Raises AttemptFailed."""
        now = self._clock()
        self._more_output = self._workers.forward_output()
        self._status.read()
        for message in messages:
            self._handle(message, now)
        self._look_at_signals(now)
        if self._leader_lost is not None and now >= self._leader_lost[1]:
            self._lose_leader(self._leader_lost[0], now)
            self._leader_lost = None
        self._exits.update((ended.place, ended) for ended in self._workers.poll())
        before = self._stops.proposal, self._stops.committed
        agreed = self._stops.look(self._context.pulse.stops(), self._exits)
        if (self._stops.proposal, self._stops.committed) != before:
            self._context.pulse.agent.show(self._stops.proposal, self._stops.committed)
        for message in agreed:
            self._connection.send(message)
        if self._verdict is None or self._phase is Phase.LEAVING:
            self._look_at_ranks(now)
            self._look_at_store(now)
        self._look_at_lease(now)
        self._look_at_deadlines(now)
        self._report_status(now)
        return self._outcome(now)

    # -- the state of the ranks

    @property
    def _resumable(self) -> bool:
        return self._status.listened or self._history.listened or self._plan.program_resumes

    @property
    def _alive(self) -> list[int]:
        return [place for place in range(self._own.ranks) if place not in self._exits]

    @property
    def _ending(self) -> bool:
        return self._context.signals.ends() is not None or "stop" in self._requests

    def _pids(self) -> list[int]:
        return [GONE if place in self._exits else pid for place, pid in enumerate(self._workers.pids())]

    @property
    def pause(self) -> float:
        if self._more_output:
            return 0.0
        if self._phase in (Phase.FAILED, Phase.ENDING) or self._killed_at is not None:
            return 0.02
        return AGREES if self._stops.waits else TICK

    # -- messages

    def _handle(self, message: Message, now: float) -> None:
        kind = message["type"]
        if kind in ("stop", "warning"):
            self._requests.setdefault(kind, from_json(message["stop"], Stop))
        elif kind == "spares":
            self._rendezvous = replace(self._rendezvous, spares=tuple(message["indices"]))
        elif kind == "regroup":
            self._returned = tuple(Place(**each) for each in message["back"])
        elif kind == "verdict":
            self._receive_verdict(from_json(message["verdict"], RoundVerdict), now)
        elif kind == "over":
            self._over = True
        elif kind == "resized":
            self._context.report_resized(from_json(message["resized"], Resized))
        elif kind == "hang":
            self._connection.send(self._status.take_stacks(self._pids()))
        elif kind in ("propose", "commit"):
            self._stops.receive(message)
        elif kind == "question":
            self._context.request_handler.handle(
                message["text"], self._position, self._own.host, lambda: self._status.processes(self._pids())
            )
        elif kind == "leader_lost":
            self._leader_lost = message["reason"], now + ALONE

    def _report_status(self, now: float) -> None:
        # The leader also passes on `attach` requests
        status, ranks = self._connection.status, self._status
        joined = ranks.joined(self._exits)
        changed = (status.get("resumable"), status.get("joined")) != (self._resumable, joined)
        first_step = status.get("step", -1) < 0 <= ranks.step
        done = [self._first_rank + place for place, ended in self._exits.items() if ended.code == errors.DONE]
        first_exit = bool(done) and not status.get("done")
        status.update(step=ranks.step, resumable=self._resumable, joined=joined, closed=ranks.closed, done=done)
        if changed or first_step or first_exit:
            self._connection.heartbeat()
        if first_step and self._own.ranks > 1:  # they are forked sooner if they have to start again
            processes.use_large_pages()  # of many agents on a node (launch.mode=tasks) each would get its own memory
        if not ranks.due(now):
            return
        leader = self._connection.coordinator if self._leads else None
        if leader is not None and (request := self._context.request_handler.next_request()):
            leader.broadcast({"type": "question", "text": request})
        if self._phase is not Phase.RUNNING:
            return
        status.update(ranks.measure(self._pids(), now))
        if (silence := ranks.silence(now)) is not None:
            self._connection.send(silence)

    def _look_at_lease(self, now: float) -> None:
        # The driver cannot signal the agents: the scheduler's daemon is gone from a node that was cut off, and by the
        # job's id srun may reach those of the other attempt. Ranks are not asked to stop: they might save once more.
        if not self._leads or self._verdict is not None or self._over or now < self._next_lease_look:
            return
        self._next_lease_look = now + lease_and_locks.HEARTBEAT
        if (lost := lease_and_locks.lost()) is not None:
            stop = Stop(reason=StopReason.LEASE_LOST, host=self._own.host, error=str(lost))
            fault = Fault(code=FaultCode.STOPPED_EARLY)
            self._send_failure(RoundEnd.KILLED, fault, listens=False, stop=stop, exit_code=errors.RESUME)

    # -- stop requests

    def _look_at_signals(self, now: float) -> None:
        ends, warns = self._context.signals.ends(), self._context.signals.warns()
        for level, number in (("stop", ends), ("warning", warns)):
            if number and level not in self._requests:
                self._request(level, Stop(reason=StopReason.SIGNAL, host=self._own.host, signal=number.name))
        if self._phase is Phase.RUNNING and not self._resumable and self._ending and self._verdict is None:
            self._phase = Phase.ENDING
            self._context.signals.ignore()
            self._connection.send({"type": "leaving", "signal": int(ends or signal.SIGTERM)})
            self._gives_up = now + self._plan.launch.heartbeat + DECIDED
            self._terminate(now)
        elif self._phase in (Phase.RUNNING, Phase.LEAVING):
            self._pass_on(now)

    def _request(self, level: str, stop: Stop) -> None:
        self._requests[level] = stop
        self._connection.send({"type": "stop", "level": level, "stop": events.values(stop)})

    def _pass_on(self, now: float) -> None:
        warned = self._context.signals.warns() or "warning" in self._requests or self._returned
        wanted = [*([signal.SIGUSR2] if warned else ()), *([signal.SIGTERM] if self._ending else ())]
        for place in self._alive:
            for number in wanted if self._status.signs[place].listens else ():
                if (place, number) not in self._signalled:
                    self._signalled.add((place, number))
                    self._workers.signal(place, number)
        if self._stop_checker is not None:
            self._signal_program(self._stop_checker, now)
        if self._ending and self._stop_by is None:
            left = time_left(os.environ)
            if left is not None and left.seconds <= 1.0:
                self._grace = min(self._grace, AT_LIMIT)
            self._stop_by = now + self._grace
        elif self._phase is Phase.LEAVING and self._stop_by is None:
            self._stop_by = now + self._plan.launch.hang_timeout
        if self._stop_by is not None and now > self._stop_by and self._alive and self._killed_at is None:
            self._too_late = True
            self._kill(now)

    def _signal_program(self, stop_checker: StopChecker, now: float) -> None:
        watches = self._phase is Phase.RUNNING and self._alive and not self._status.listened
        if watches and "stop" not in self._requests and (reason := stop_checker.reason(now)):
            self._request("stop", Stop(reason=reason))
        asked = self._requests or self._returned or self._context.signals.warns() or self._context.signals.ends()
        left = any(ended.code == errors.RESUME for ended in self._exits.values())
        if not (asked or left or self._phase is Phase.LEAVING):
            return
        number = signal.Signals[self._plan.workload.params["stop_signal"]]
        for place in self._alive:
            if self._status.signs[place].listens or place in self._program_signalled:
                continue
            self._program_signalled.add(place)
            if self._stop_by is None:
                self._stop_by = now + stop_checker.exit_time(now)
            self._workers.signal(place, number)

    # -- ranks that end

    def _look_at_ranks(self, now: float) -> None:
        if self._phase not in (Phase.RUNNING, Phase.LEAVING):
            return
        returns = self._plan.workload.kind != "Program"
        ends = [policy.failure_of(ended, self._own.host, returns=returns) for ended in self._exits.values()]
        failed = [failure for failure in ends if failure is not None]
        leave = bool(failed) and policy.exited_to_resume(
            failed, resumable=self._resumable, left_first=self._left_first, signalled=bool(self._program_signalled),
            saving=self._phase is Phase.LEAVING or self._too_late,
        )  # fmt: skip
        if leave:
            if self._stop_by is None and self._resumable:
                self._stop_by = now + self._plan.launch.hang_timeout
            elif self._stop_by is None:
                self._left_first = True
                self._report_left()
                self._terminate(now)  # ranks that do not listen for stop requests would not exit by themselves
            if not self._alive:
                if self._resumable:
                    self._report_left()
                self._end(now)
        elif failed:
            self._report_failure(policy.to_blame(failed), now)
        elif not self._alive:
            if self._program_signalled or self._phase is Phase.LEAVING:
                self._report_left()  # they exited in time, and may have more to do; if not, the next attempt is short
            self._end(now)

    def _look_at_store(self, now: float) -> None:
        # Ranks would wait until their time to join is over, or fail when they make their next group
        if self._phase is Phase.RUNNING and self._store is not None and (end := self._store.end()):
            fault = Fault(code=FaultCode.AGENT, error=end, memory=self._memory.read())
            self._send_failure(RoundEnd.KILLED, fault, listens=self._resumable or not self._status.joined(self._exits))
            self._fail(now)

    def _end(self, now: float) -> None:
        # Reports to the leader that all ranks of this agent have ended, none of them killed because of a failure
        self._phase = Phase.ENDED
        self._gives_up = now + LATE if self._too_late else None
        self._connection.send({"type": "ended"})

    def _report_failure(self, failure: policy.RankFailure, now: float) -> None:
        place = failure.rank - self._first_rank
        listens = self._resumable and not (failure.final or self._status.signs[place].gives_up)
        fault = replace(failure.fault, memory=self._memory.read())
        self._send_failure(failure.kind, fault, listens=listens, place=failure.place)
        self._fail(now)

    def _fail(self, now: float) -> None:
        if self._phase is not Phase.LEAVING:
            self._phase = Phase.FAILED
        self._gives_up = now + self._plan.launch.heartbeat + DECIDED
        self._stop_ranks(now)

    def _report_left(self) -> None:
        if self._returned and not self._ending:
            message = f"{messages.first_of(list(map(messages.of_place, self._returned)))} came back"
            self._send_failure(RoundEnd.REGROUP, Fault(code=FaultCode.NODE_RETURNED, message=message))
            return
        asked = self._agreed_stop() or self._requests.get("stop") or self._requests.get("warning")
        killed_after = self._grace if self._too_late else None
        stop = policy.stop_of_exits(self._exits.values(), asked, self._own.host, killed_after=killed_after)
        self._send_failure(RoundEnd.LEFT, Fault(code=FaultCode.LEFT), stop=stop)

    def _agreed_stop(self) -> Stop | None:
        entries: list[dict[str, Any]] = []
        with contextlib.suppress(errors.RunError):  # it only describes the stop request
            entries = list(self._context.attempt.written_by("stop", retry_seconds=0))
        return events.last(entries, Stop)

    def _send_failure(self, kind: RoundEnd, fault: Fault, **details: Any) -> None:
        self._connection.send(self._failure(kind, fault, **details).message())

    def _failure(self, kind: RoundEnd, fault: Fault, *, listens: bool | None = None, **details: Any) -> RoundFailure:
        # Returns a failure with this fault, completed by the step and, unless set, this agent's host and node
        node = self._own.node_rank if fault.node is None else fault.node
        step = self._status.step if self._status.step >= 0 else None
        fault = replace(fault, host=fault.host or self._own.host, node=node, step=step)
        return RoundFailure(kind, fault, self._own.index, self._resumable if listens is None else listens, **details)

    # -- decisions

    def _receive_verdict(self, verdict: RoundVerdict, now: float) -> None:
        if self._verdict is not None:
            return
        self._verdict = verdict
        if verdict.failure.member == self._own.index and not may_be_cut_off(verdict, self._plan.least_agents):
            self._write_verdict(verdict)
        if self._phase is Phase.ENDED:
            return
        self._gives_up = None
        if verdict.saves and self._resumable and self._phase is Phase.RUNNING:
            self._phase = Phase.LEAVING
        elif self._phase is not Phase.ENDING:
            self._phase = Phase.FAILED
            self._stop_ranks(now)

    def _lose_leader(self, reason: str, now: float) -> None:
        if self._over:  # the leader has left because all is done
            return
        leader = self._rendezvous.members[0]
        self._over = True  # no leader is left to send it
        if self._verdict is not None:
            return
        ended_by = int(self._context.signals.ends() or signal.SIGTERM) if self._phase is Phase.ENDING else None
        asked = self._requests.get("stop")
        fault = policy.fault_of_lost_leader(leader, reason, stopping=self._ending, ended_by=ended_by, asked=asked)
        if ended_by is None:
            failure = self._failure(RoundEnd.LOST_NODE, fault, lost=(leader.index,))
        else:
            failure = self._failure(RoundEnd.KILLED, fault, listens=False, exit_code=128 + ended_by)
        members = len(self._rendezvous.members) + len(self._rendezvous.spares)
        # Without the time at which the round began, all agents decide the same
        self._receive_verdict(judge(failure, self._history, self._plan, stopping=self._ending, members=members), now)

    def _write_verdict(self, verdict: RoundVerdict) -> None:
        # Only the agent that saw the failure first calls it
        if verdict.restarts:
            restart = verdict.restart(self._rendezvous.world_size)
            self._context.events(restart)
            at = f" (at step {restart.step})" if restart.step is not None else ""
            log_line(f"{describe(verdict.event)}{at}; the ranks start again, round {restart.round}")
        elif verdict.failure.stop is None or self._agreed_stop() is None:  # else the ranks have written it
            self._context.events(verdict.event)

    # -- ending ranks

    def _stop_ranks(self, now: float) -> None:
        if self._resumable:
            self._kill(now)  # what they have not saved is lost already
        else:
            self._terminate(now)

    def _terminate(self, now: float) -> None:
        if self._terminated:
            return
        self._terminated = True
        for place in self._alive:
            self._workers.signal(place, signal.SIGTERM)
        self._stop_by = now + self._plan.launch.grace

    def _kill(self, now: float) -> None:
        if self._killed_at is None:
            self._killed_at = now
        self._workers.kill()

    def _look_at_deadlines(self, now: float) -> None:
        ends = self._phase in (Phase.ENDING, Phase.FAILED) and self._alive and self._killed_at is None
        if ends and self._stop_by is not None and now > self._stop_by:
            self._kill(now)
        if self._killed_at is not None and self._alive and self._does_not_end(self._killed_at, now):
            left = [LeftOver.of(self._first_rank + place, self._workers.pids()[place]) for place in self._alive]
            fault = policy.fault_of_end(left, self._own.host)
            self._context.events(fault)
            raise policy.AttemptFailed(fault, errors.RESUME)
        if self._gives_up is not None and now > self._gives_up and self._verdict is None:
            self._lose_leader("it has decided nothing in time", now)

    def _does_not_end(self, killed_at: float, now: float) -> bool:
        if now - killed_at <= DIES:
            return False
        used = sum(processes.cpu_seconds(self._workers.pids()[place]) for place in self._alive)
        if self._frees is None:
            self._frees = used, now + LOOKS
        elif used != self._frees[0]:  # also less: a rank of several is gone
            self._frees = used, now + DIES
        return now > min(self._frees[1], killed_at + FREES)

    # -- outcome

    def _outcome(self, now: float) -> policy.Done | policy.NextRound | None:
        if self._alive:
            return None
        verdict = self._verdict
        if verdict is None:
            if self._phase is not Phase.ENDED or not self._over:
                return None
            self._status.watch_gpus(now, over=True)
            first = min(self._exits)
            return policy.Done(dict(self._exits[first].returned or {}))
        if verdict.saves and self._phase is not Phase.ENDED:  # these ranks could not resume; others may be saving
            self._end(now)
        if verdict.saves and not self._over and not (self._gives_up is not None and now > self._gives_up):
            return None
        if verdict.restarts:
            self._status.read()  # the verdict may know only what the last heartbeats said
            history = replace(verdict.history, best=max(verdict.history.best, self._status.step))
            planned = verdict.failure.kind is RoundEnd.REGROUP
            return policy.NextRound(history, verdict.failure.lost, self._rendezvous.spares, planned)
        ours, event = verdict.failure.member == self._own.index, verdict.event
        suspended = event if isinstance(event, Fault) and may_be_cut_off(verdict, self._plan.least_agents) else None
        raise policy.AttemptFailed(event, verdict.exit_code, ours=ours, decides=ours, suspended=suspended)


# -- Decides when every rank of a program, which need not check for stop requests itself, gets `workload.stop_signal`:
# when the time limit is near (seen by the agents that know the time left for sure, and the first one), after `touch
# RUN/stop` (by the first one), or when an agent gets a signal. A rank that calls `launcher.should_stop()` checks by
# itself, and gets no signal until the scheduler ends the attempt


STOP_LOOK = 1.0  # seconds between two checks
RESERVED = 5.0  # seconds before the deadline (at most half of resume.lead) in which agents record the end


class StopChecker:
    def __init__(self, plan: JobPlan, environ: Mapping[str, str], *, first: bool, now: float) -> None:
        # first: this is the first agent, which checks for the stop file and estimates the time left
        self._plan, self._first, self._next = plan, first, 0.0
        left = time_left(environ)
        self._left = None if left is None else left.seconds
        self._watches = left is not None and (left.sure or first)
        self._began = now

    def reason(self, now: float) -> StopReason | None:
        """Returns why the program has to stop now; None: it does not have to. Looks each STOP_LOOK seconds."""
        if now < self._next:
            return None
        self._next = now + STOP_LOOK
        if self._watches and self._left is not None and now - self._began >= self._left - self._plan.resume.lead:
            return StopReason.TIME_LIMIT
        # A file that cannot be read now is no stop request; the next check is in a second.
        if self._first and exists(Path(self._plan.run_dir) / "stop", retry_seconds=0) == Ok(True):
            return StopReason.STOP_FILE
        return None

    def exit_time(self, now: float) -> float:
        """Returns how many seconds the ranks have to exit if they get the stop signal now."""
        left = math.inf if self._left is None else self._left - (now - self._began)
        return exit_time(float(self._plan.launch.grace), float(self._plan.resume.lead), left)


def exit_time(grace: float, lead: float, left: float) -> float:
    """Returns the seconds until ranks are killed: `grace`, but no longer than until agents must record the end."""
    return max(0.0, min(grace, left - min(RESERVED, lead / 2)) if left > 0 else 0.0)
