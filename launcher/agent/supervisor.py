"""One life of this agent's ranks: a round, from their start until none of them runs any more.

A loop over what happens: ranks end, messages arrive, signals arrive, time passes. What is done about a failure is
decided by the leading agent for all (see `coordinator` and `restart_policy`); this one only reports it. Ranks that can
resume are asked to stop and are given the time to save; others are ended.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from launcher import errors
from launcher.agent import memory
from launcher.agent.coordinator import Coordinator, judged, may_be_cut_off
from launcher.agent.failures import Failure, failure_of, failure_to_end, to_blame
from launcher.agent.logs import log_name
from launcher.agent.program_stop import StopChecker
from launcher.agent.restart_policy import History, Kind, Then
from launcher.agent.signals import Signals
from launcher.agent.stragglers import Paces
from launcher.agent.workers import LeftOver, WorkerExit
from launcher.attach.request_handler import GONE, Process, RequestHandler
from launcher.failures import text
from launcher.failures.codes import FaultCode, StopReason
from launcher.log_line import log_line
from launcher.rendezvous.channel import Message
from launcher.rendezvous.protocol import Meeting
from launcher.runs import directory, event_file, event_json, events
from launcher.runs.event_writer import Events
from launcher.runs.events import Fault, Restart, Stop
from launcher.spec.plan import JobPlan
from launcher.worker import hangs
from launcher.worker.flight_recorder import Recorders
from launcher.worker.hangs import Activity, StepWatch
from launcher.worker.heartbeat import Pulse, Sign
from launcher.worker.stop_agreement import AgentSide

LATE = 3.0  # seconds that an agent which had to kill its ranks waits for the others: who asked it to stop kills it next
TICK = 0.1  # seconds between two looks at what ranks print and tell
AGREES = 0.005  # seconds between two looks while ranks are to answer whether they can stop at a boundary
DIES = 10.0  # seconds in which a killed rank is gone, unless its node is ill
DECIDED = 5.0  # seconds beyond a heartbeat in which the leader has decided about a failure
# What the policy of restarts makes of a failure of a rank; of others it is an error of the program.
_KINDS = {
    FaultCode.LOST_PEER: Kind.LOST_PEER,
    FaultCode.SIGNALLED: Kind.KILLED,
    FaultCode.NO_RETRY: Kind.NO_RETRY,
}


class AttemptFailed(Exception):
    """The attempt ended early; the text is the cause, as the user should read it.

    Attributes:
        exit_code: what the job script decides by.
        ours: whether this agent was the first to know, and so is the one to print it.
        decides: whether it speaks for the attempt. One that never met the others does not: they may go on.
        suspended: set if the lost members may continue without this agent (see `coordinator.may_be_cut_off`): the event
            that is to be written when they do not.
    """

    def __init__(
        self, cause: str, exit_code: int = errors.FAILED, *, ours: bool = True, decides: bool = False,
        suspended: Fault | None = None,
    ) -> None:  # fmt: skip
        super().__init__(cause)
        self.exit_code = exit_code
        self.ours = ours
        self.decides = decides
        self.suspended = suspended


@dataclass(frozen=True)
class Done:
    """All ranks have done their work.

    Attributes:
        metrics: of the first rank of this agent.
    """

    metrics: dict[str, Any]


@dataclass(frozen=True)
class NextRound:
    """The ranks start again.

    Attributes:
        history: of the rounds, this one included.
        lost: indices of members that are gone.
    """

    history: History
    lost: tuple[int, ...] = ()


@dataclass(frozen=True)
class Request:
    """Why ranks are to save and leave.

    Attributes:
        text: for people.
        reason: the same for programs.
        signal: by which it was asked; None: by none.
    """

    text: str
    reason: StopReason
    signal: str | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Request:
        """The inverse of `fields`."""
        return cls(message["reason"], StopReason(message.get("code", "unknown")), message.get("signal"))

    @property
    def fields(self) -> dict[str, Any]:
        """What a message has of it."""
        return {"reason": self.text, "code": self.reason.value, "signal": self.signal}


class Workers(Protocol):
    """The processes of this agent's ranks: `launcher.agent.workers.WorkerGroup`, or a test's."""

    def poll(self) -> list[WorkerExit]: ...
    def pids(self) -> list[int]: ...
    def signal(self, place: int, number: int) -> None: ...
    def kill(self) -> None: ...
    def forward_output(self) -> bool: ...


class Line(Protocol):
    """The connection to the other agents: `launcher.agent.control.Control`, or a test's."""

    status: dict[str, Any]
    coordinator: Coordinator | None

    def send(self, message: Message) -> None: ...
    def beat(self) -> None: ...
    def poll(self, timeout: float) -> list[Message]: ...


@dataclass
class Means:
    """What an agent keeps from one round to the next.

    Attributes:
        plan, attempt, events, signals: see their classes.
        pulse, stacks: what its ranks write to.
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


class Phase(Enum):
    """Where this agent's part of a round is."""

    RUNNING = "running"
    LEAVING = "leaving"  # ranks of another agent have left to resume later; ours are given the time to do so, too
    FAILED = "failed"  # ours have failed, and the leader decides about it
    ENDING = "ending"  # ours cannot resume, and are being ended because of a stop request
    ENDED = "ended"  # ours have ended as they should; those of others may not have


class Supervisor:
    """Watches this agent's ranks in one round."""

    def __init__(
        self, means: Means, control: Line, workers: Workers, meeting: Meeting, place: int, history: History, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """
        Args:
            means: of this agent.
            control: the connection to the others.
            workers: the ranks, started.
            meeting: who takes part in the round.
            place: of this agent among them; the one at 0 leads.
            history: of the rounds before.
            clock: seconds; for tests.
        """
        plan = means.plan
        self._means, self._plan, self._control, self._workers = means, plan, control, workers
        self._meeting, self._place, self._history, self._clock = meeting, place, history, clock
        self._me, self._leads = meeting.members[place], place == 0
        self._first_rank = meeting.first_rank(place)
        self._began = clock()
        self._phase = Phase.RUNNING
        self._exits: dict[int, WorkerExit] = {}
        self._requests: dict[str, Request] = {}  # stop, warning, regroup
        self._verdict: dict[str, Any] | None = None
        self._cut_off = False  # perhaps: the others may continue without this agent
        self._least = plan.min_nodes * plan.tasks_per_node
        self._history_after = history
        self._over = False
        self._listened = False
        self._step = -1
        self._signs: list[Sign] = means.pulse.signs()
        self._delivered: set[tuple[int, signal.Signals]] = set()
        self._program_signalled: set[int] = set()
        self._stop_checker = StopChecker(plan, os.environ, first=self._leads, now=self._began) if plan.goes_on else None
        self._stop_by: float | None = None  # ranks that are left then are killed
        self._killed_at: float | None = None
        self._gives_up: float | None = None  # waiting for the leader or for others
        self._too_late = False
        self._terminated = False
        self._left_first = False  # a rank left to resume later, and the others were ended because of that
        self._silent_sent = False
        self._next_care = 0.0
        self._steps = StepWatch(math.inf if plan.debugs else plan.launch.hang_timeout)
        self._activity = Activity(self._me.ranks, clock(), min(hangs.LOOK, plan.launch.idle_timeout / 4))
        self._memory = memory.Watch()
        self._paces = Paces(plan, means.attempt, means.events, meeting, place, history.round)
        self._stops = AgentSide(self._first_rank)

    def run(self) -> Done | NextRound:
        """Returns when no rank of this agent runs any more, and it is known what comes next.

        Raises:
            AttemptFailed: the attempt is over.
        """
        if self._leads and self._control.coordinator is not None:
            self._control.coordinator.watch(self._clock())
        while True:
            outcome = self.turn(self._control.poll(self._pause()))
            if outcome is not None:
                return outcome

    def turn(self, messages: Sequence[Message]) -> Done | NextRound | None:
        """Takes in what has happened, and does what follows; the outcome, once there is one.

        Raises:
            AttemptFailed: the attempt is over.
        """
        now = self._clock()
        self._workers.forward_output()
        self._signs = self._means.pulse.signs()
        self._listened = self._listened or any(sign.listens for sign in self._signs)
        self._step = max(self._step, *(sign.step for sign in self._signs))
        for message in messages:
            self._handle(message, now)
        self._look_at_signals(now)
        for ended in self._workers.poll():
            self._exits[ended.place] = ended
        self._agree_on_stops()
        if self._verdict is None or self._phase is Phase.LEAVING:
            self._look_at_ranks(now)
        self._look_at_deadlines(now)
        self._take_care(now)
        return self._outcome(now)

    # -- the state of the ranks

    @property
    def _resumable(self) -> bool:
        """Whether ranks can resume: one listens for stop requests, or did in an earlier round."""
        return self._listened or self._history.listened or self._plan.goes_on

    @property
    def _alive(self) -> list[int]:
        """Places of the ranks that run."""
        return [place for place in range(self._me.ranks) if place not in self._exits]

    @property
    def _ending(self) -> bool:
        """Whether this agent or another one was asked to stop at once."""
        return self._means.signals.ends() is not None or "stop" in self._requests

    def _pause(self) -> float:
        """Seconds until the next look."""
        if self._phase in (Phase.FAILED, Phase.ENDING) or self._killed_at is not None:
            return 0.02
        return AGREES if self._stops.waits else TICK

    # -- what is asked of this agent

    def _handle(self, message: Message, now: float) -> None:
        kind = message["type"]
        if kind in ("stop", "warning", "regroup"):
            self._requests.setdefault(kind, Request.of(message))
        elif kind == "verdict":
            self._receive_verdict(dict(message), now)
        elif kind == "over":
            self._over = True
        elif kind == "hang":
            self._send_stacks()
        elif kind in ("propose", "commit"):
            self._stops.receive(message)
        elif kind == "question":
            self._means.request_handler.handle(message["text"], self._place, self._me.host, self._processes)
        elif kind == "leader_lost":
            self._lose_leader(message["reason"], now)

    def _agree_on_stops(self) -> None:
        """Lets the ranks, the leader and the other agents know what each wants done at a step boundary."""
        pulse, stops = self._means.pulse, self._stops
        before = stops.proposal, stops.committed
        messages = stops.look(pulse.stops(), self._exits)
        if (stops.proposal, stops.committed) != before:
            pulse.show(stops.proposal, stops.committed)
        for message in messages:
            self._control.send(message)

    def _look_at_signals(self, now: float) -> None:
        """Tells the others of a stop request, and the ranks, or ends those that cannot resume."""
        ends, warns = self._means.signals.ends(), self._means.signals.warns()
        if ends and "stop" not in self._requests:
            self._request("stop", "end", self._was_asked(ends))
        if warns and "warning" not in self._requests:
            self._request("warning", "warning", self._was_asked(warns))
        if self._phase is Phase.RUNNING and not self._resumable and self._ending and self._verdict is None:
            self._phase = Phase.ENDING
            self._means.signals.ignore()
            self._control.send({"type": "leaving", "signal": int(ends or signal.SIGTERM)})
            self._gives_up = now + self._plan.launch.heartbeat + DECIDED
            self._terminate(now)
        elif self._phase in (Phase.RUNNING, Phase.LEAVING):
            self._pass_on(now)

    def _request(self, name: str, level: str, request: Request) -> None:
        self._requests[name] = request
        self._control.send({"type": "stop", "level": level, **request.fields})

    def _was_asked(self, number: signal.Signals) -> Request:
        return Request(text.asked_to_stop(self._me.host, number.name), StopReason.SIGNAL, number.name)

    def _pass_on(self, now: float) -> None:
        """Signals the ranks that listen, once each; kills those that do not leave in time."""
        warned = self._means.signals.warns() or self._requests.keys() & {"warning", "regroup"}
        wanted = [*([signal.SIGUSR2] if warned else ()), *([signal.SIGTERM] if self._ending else ())]
        for place in self._alive:
            for number in wanted if self._signs[place].listens else ():
                if (place, number) not in self._delivered:
                    self._delivered.add((place, number))
                    self._workers.signal(place, number)
        if self._stop_checker is not None:
            self._signal_program(self._stop_checker, now)
        if self._ending and self._stop_by is None:
            self._stop_by = now + self._plan.launch.grace
        elif self._phase is Phase.LEAVING and self._stop_by is None:
            self._stop_by = now + self._plan.launch.hang_timeout
        if self._stop_by is not None and now > self._stop_by and self._alive and self._killed_at is None:
            self._too_late = True
            self._kill(now)

    def _signal_program(self, stop_checker: StopChecker, now: float) -> None:
        """Sends each rank of a program its one signal to stop, whatever the cause."""
        watches = self._phase is Phase.RUNNING and self._alive and not self._listened
        if watches and "stop" not in self._requests and (reason := stop_checker.reason(now)):
            self._request("stop", "end", Request(text.of_stop(reason), reason))
        asked = self._requests or self._means.signals.warns() or self._means.signals.ends()
        left = any(ended.code == errors.RESUME for ended in self._exits.values())
        if not (asked or left or self._phase is Phase.LEAVING):
            return
        number = signal.Signals[self._plan.workload.params["stop_signal"]]
        for place in self._alive:
            if self._signs[place].listens or place in self._program_signalled:
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
        ends = [failure_of(ended, self._me.host, returns=returns) for ended in self._exits.values()]
        failed = [failure for failure in ends if failure is not None]
        if failed and self._may_leave(failed):
            if self._stop_by is None and self._resumable:
                self._stop_by = now + self._plan.launch.hang_timeout
            elif self._stop_by is None:
                self._left_first = True
                self._report_left()
                self._terminate(now)  # ranks that do not listen would not leave by themselves
            if not self._alive:
                if self._resumable:
                    self._report_left()
                self._end(now)
        elif failed:
            self._report_failure(to_blame(failed), now)
        elif not self._alive:
            if self._program_signalled or self._phase is Phase.LEAVING:
                self._report_left()  # they left in time and may have more to do; if not, the next attempt is short
            self._end(now)

    def _may_leave(self, failed: Sequence[Failure]) -> bool:
        """Whether ranks that ended with an exit code other than 0 did so to resume later."""
        codes = {failure.code for failure in failed}
        if not self._resumable:
            return self._left_first or to_blame(failed).code is FaultCode.LEFT
        signalled = self._program_signalled and FaultCode.NO_RETRY not in codes
        leaving = self._phase is Phase.LEAVING or self._too_late
        return bool(FaultCode.LEFT in codes or leaving or signalled)

    def _end(self, now: float) -> None:
        """No rank of this agent runs any more, and none was killed for a failure."""
        self._phase = Phase.ENDED
        self._gives_up = now + LATE if self._too_late else None
        self._control.send({"type": "ended"})

    def _report_failure(self, failure: Failure, now: float) -> None:
        """A rank failed."""
        kind = _KINDS.get(failure.code, Kind.RAISED)
        place = failure.rank - self._first_rank
        listens = self._resumable and not (failure.final or self._signs[place].gives_up)
        told = failure.told
        status = told.pop("exit_code")  # that of the attempt has this name
        self._report(kind, FaultCode(told.pop("code")), told.pop("cause"), now, listens=listens, status=status, **told)

    def _report_left(self) -> None:
        """Ranks have left to resume later."""
        left = [ended.rank for ended in self._exits.values() if ended.code == errors.RESUME]
        host = self._me.host
        request = self._requests.get("stop") or self._requests.get("warning")
        if agreed := self._agreed_stop():
            request = Request(agreed.cause, agreed.reason, agreed.signal)
        if request is None:
            request = Request(text.left(left, host), StopReason.EXIT_75 if left else StopReason.NOT_IN_TIME)
        cause = request.text
        if self._too_late:
            cause += f"; ranks on {host} did not leave within {self._plan.launch.grace} s and were killed"
        regroups = "regroup" in self._requests and not self._ending
        kind = Kind.REGROUP if regroups else Kind.LEFT
        if regroups:
            self._send_failure(kind, FaultCode.NODE_RETURNED, self._requests["regroup"].text)
            return
        told = {"reason": request.reason.value, "ranks": sorted(left), "signal": request.signal}
        self._send_failure(kind, FaultCode.LEFT, f"stopped: {cause}", stop={**told, "cause": cause})

    def _agreed_stop(self) -> Stop | None:
        """What the ranks themselves have agreed on."""
        entries: list[dict[str, Any]] = []
        with contextlib.suppress(errors.RunError):  # the stop request counts, and not how it is worded
            entries = list(event_file.read(self._means.attempt.events_file("stop"), retry_seconds=0))
        return events.last(entries, Stop)

    def _report(self, kind: Kind, code: FaultCode, cause: str, now: float, **details: Any) -> None:
        """Ranks of this agent have failed: none of them is of use any more."""
        details.setdefault("memory", self._memory.told())
        self._send_failure(kind, code, cause, **details)
        if self._phase is not Phase.LEAVING:
            self._phase = Phase.FAILED
        self._gives_up = now + self._plan.launch.heartbeat + DECIDED
        self._stop_ranks(now)

    def _send_failure(self, kind: Kind, code: FaultCode, cause: str, **details: Any) -> None:
        if self._stop_checker is not None and self._stop_checker.saved():
            details["saved"] = True
        details.setdefault("listens", self._resumable)
        self._control.send({"type": "failure", **self._failure(kind, code, cause), **details})

    def _failure(self, kind: Kind, code: FaultCode, cause: str) -> dict[str, Any]:
        return {
            "cause": cause, "code": code.value, "host": self._me.host, "node": self._me.node_rank,
            "member": self._me.index, "kind": kind.value, "step": self._step, "lost": [],
        }  # fmt: skip

    # -- what the leader decides

    def _receive_verdict(self, message: dict[str, Any], now: float) -> None:
        if self._verdict is not None:
            return
        self._history_after = History(**message.pop("history"))
        del message["type"]
        self._verdict = message
        self._cut_off = may_be_cut_off(message, self._least)
        if message["member"] == self._me.index and not self._cut_off:
            self._tell_verdict(message)
        if self._phase is Phase.ENDED:
            return
        self._gives_up = None
        gives_time = message["kind"] in (Kind.LEFT.value, Kind.REGROUP.value) and self._resumable
        if gives_time and self._phase is Phase.RUNNING:
            self._phase = Phase.LEAVING
        elif self._phase is not Phase.ENDING:
            self._phase = Phase.FAILED
            self._stop_ranks(now)

    def _lose_leader(self, reason: str, now: float) -> None:
        """The leader is gone, or is cut off: every agent decides for itself, by the same rules."""
        if self._over:  # it has left because all is done
            return
        leader, host = self._meeting.members[0], self._me.host
        self._over = True  # nobody will say so
        if self._phase is Phase.ENDING and self._verdict is None:
            number = int(self._means.signals.ends() or signal.SIGTERM)
            cause = text.node_lost(f"{leader.host}, which runs rank 0,")
            if asked := self._requests.get("stop"):
                cause = f"{cause}; then {asked.text}"
            failure = {**self._failure(Kind.KILLED, FaultCode.NODE_ENDED, cause), "accused": [{"host": leader.host}]}
            failure |= {"listens": False, "exit_code": 128 + number, "signal": text.signal_name(number)}
            self._decide_alone(failure, now)
        if self._verdict is not None:
            return
        cause, code = text.leader_lost(host, leader.host), FaultCode.LEADER_LOST
        if self._ending:
            cause, code = text.node_lost(leader.host), FaultCode.NODE_ENDED
        failure = {**self._failure(Kind.LOST_NODE, code, cause), "lost": [leader.index], "error": reason}
        failure |= {"host": leader.host, "node": leader.node_rank, "accused": [{"host": leader.host}]}
        self._decide_alone({**failure, "listens": self._resumable}, now)

    def _decide_alone(self, failure: dict[str, Any], now: float) -> None:
        verdict = judged(
            failure,
            self._history,
            stopping=self._ending,
            members=len(self._meeting.members),
            least=self._least,
            max_restarts=self._plan.launch.max_restarts,
        )
        history = self._history
        if verdict["then"] == Then.RESTART.value:
            history = history.after(verdict["cause"], verdict["further"])
        self._receive_verdict({"type": "verdict", **verdict, "history": vars(history)}, now)

    def _tell_verdict(self, verdict: dict[str, Any]) -> None:
        """This agent was the first to know, and tells the run directory and the user."""
        cause = verdict["cause"]
        if verdict["then"] == Then.RESTART.value:
            number = self._history_after.round
            self._means.events(restart_of(verdict, number, self._meeting.world_size))
            at = f" (at step {verdict['step']})" if verdict["step"] >= 0 else ""
            log_line(f"{cause}{at}; the ranks start again, round {number}")
        elif verdict["kind"] == Kind.LEFT.value:
            if self._agreed_stop() is None:
                step = {"step": verdict["step"]} if verdict["step"] >= 0 else {}
                self._means.events(
                    event_json.from_entry({"event": Stop.event, "host": self._me.host, **verdict["stop"], **step})
                )
        else:
            self._means.events(fault_of(verdict))

    # -- ending ranks

    def _stop_ranks(self, now: float) -> None:
        if self._resumable:
            self._kill(now)  # what they have not saved is lost already
        else:
            self._terminate(now)

    def _terminate(self, now: float) -> None:
        """SIGTERM, once; whoever is left after launch.grace is killed."""
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
        if self._killed_at is not None and now - self._killed_at > DIES and self._alive:
            left = [LeftOver.of(self._first_rank + place, self._workers.pids()[place]) for place in self._alive]
            cause = text.of_rank(failure_to_end(left, self._me.host, time.time()))
            raise AttemptFailed(cause, errors.RESUME)
        if self._gives_up is not None and now > self._gives_up and self._verdict is None:
            self._lose_leader("it has decided nothing in time", now)

    # -- outcome

    def _outcome(self, now: float) -> Done | NextRound | None:
        if self._alive:
            return None
        verdict = self._verdict
        if verdict is None:
            if self._phase is not Phase.ENDED or not self._over:
                return None
            first = min(self._exits)
            return Done(dict(self._exits[first].returned or {}))
        waits = verdict["kind"] in (Kind.LEFT.value, Kind.REGROUP.value)
        if waits and self._phase is not Phase.ENDED:  # ours could not resume and were ended; others may still save
            self._end(now)
        if waits and not self._over and not (self._gives_up is not None and now > self._gives_up):
            return None
        if verdict["then"] == Then.RESTART.value:
            return NextRound(self._history_after, tuple(verdict["lost"]))
        ours = verdict["member"] == self._me.index
        suspended = fault_of(verdict) if self._cut_off else None
        raise AttemptFailed(
            verdict["cause"], verdict["exit_code"], ours=ours, decides=ours, suspended=suspended
        )  # fmt: skip

    # -- what is looked at now and then

    def _take_care(self, now: float) -> None:
        status = self._control.status
        joined = all(sign.joined or place in self._exits for place, sign in enumerate(self._signs))
        changed = (status.get("resumable"), status.get("joined")) != (self._resumable, joined)
        first_step = status.get("step", -1) < 0 <= self._step
        status.update(step=self._step, resumable=self._resumable, joined=joined)
        if changed or first_step:
            self._control.beat()
        if now < self._next_care or self._phase is not Phase.RUNNING:
            return
        self._next_care = now + min(1.0, self._plan.launch.hang_timeout / 4, self._plan.launch.heartbeat / 4)
        places = range(self._me.ranks)
        status["missing"] = [
            self._first_rank + place for place in places if not self._signs[place].arrived and place not in self._exits
        ]
        status["idle"] = round(self._activity.idle(self._signs, self._pids(), self._printed(), now), 1)
        if not self._silent_sent and (silent := self._steps.silent(self._signs, now)):
            self._silent_sent = True
            self._control.send({"type": "silent", "ranks": [self._first_rank + place for place in silent]})
        # A rank that is stepped through is not a slow one.
        if not self._plan.debugs and (pace := self._paces.look(self._means.pulse.paces(), now)):
            status["pace"] = pace
            self._control.beat()
        if self._leads and self._control.coordinator is not None:
            self._paces.judge(self._control.coordinator.take_paces())
            if request := self._means.request_handler.next_request():
                self._control.coordinator.broadcast({"type": "question", "text": request})

    def _printed(self) -> list[int]:
        """Bytes that each rank has printed."""
        sizes = []
        for place in range(self._me.ranks):
            total = 0
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    name = log_name(self._first_rank + place, self._history.round, stream)
                    total += os.stat(self._means.attempt.logs / name).st_size
            sizes.append(total)
        return sizes

    def _send_stacks(self) -> None:
        """Saves the stacks of this agent's ranks, and tells them."""
        ranks = [self._first_rank + place for place in range(self._me.ranks)]
        recorded = self._means.recorders.take(ranks) if self._means.recorders else [""] * len(ranks)
        reports = []
        for place, (state, stack) in enumerate(self._means.stacks.take(self._pids())):
            rank = ranks[place]
            reports.append(hangs.Report(rank, self._me.host, self._signs[place].step, state, stack, recorded[place]))
            text = stack or f"rank {rank} wrote no stack; its process is in state {state or 'gone'}\n"
            with contextlib.suppress(OSError):
                path = self._means.attempt.logs / log_name(rank, self._history.round, "stacks")
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                    file.write(text)
        self._control.send({"type": "stacks", "reports": [vars(report) for report in reports]})

    def _processes(self) -> list[Process]:
        pids = self._pids()
        return [
            Process(self._first_rank + place, pids[place], sign.step, self._means.environments[place])
            for place, sign in enumerate(self._signs)
        ]

    def _pids(self) -> list[int]:
        """Process id of each rank; GONE in the place of one that has ended."""
        return [GONE if place in self._exits else pid for place, pid in enumerate(self._workers.pids())]


def fault_of(verdict: Mapping[str, Any]) -> Fault:
    """The event of a verdict that ends the attempt. Pure."""
    fault = event_json.from_entry({**_told(verdict), "event": Fault.event, "ends_with": verdict["exit_code"]})
    assert isinstance(fault, Fault)
    return fault


def restart_of(verdict: Mapping[str, Any], number: int, world_size: int) -> Restart:
    """The event of a verdict after which this round begins. Pure."""
    restart = event_json.from_entry(
        {**_told(verdict), "event": Restart.event, "round": number, "world_size": world_size}
    )
    assert isinstance(restart, Restart)
    return restart


def _told(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {**verdict, "exit_code": verdict.get("status")}
