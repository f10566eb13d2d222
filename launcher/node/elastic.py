"""torch's elastic agent for one round of the ranks of one member, and a word between the agents of all of them.

A round is one life of the ranks: from their fork to their end. What is added to torch's agent: the rendezvous is a
meeting that has taken place already; a fault on one node ends the round on the others at once and tells them whose it
was; a rank that leaves without a word, or hangs, is a fault as well; and ranks that listen are told to stop and left to
save, instead of being ended. Whether a fault is followed by another round is decided in `restarts`.

What agents tell each other is in `board`.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing.connection
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from launcher import errors, event_file, runs
from launcher.config import Backend
from launcher.node import console, debug, memory, orphans, watchdog
from launcher.node.answers import Desk, Process
from launcher.node.board import LOOK, Board
from launcher.node.events import Events
from launcher.node.forks import garbage_kept
from launcher.node.line import LineDead
from launcher.node.logs import Logs, log_name, users_frames
from launcher.node.minder import Minder
from launcher.node.paces import Paces
from launcher.node.pulse import Pulse, Sign
from launcher.node.rank import AGENTS_OWN, place_variables, run_rank
from launcher.node.rendezvous import Meeting
from launcher.node.restarts import History, Kind, Then, decide, given_up
from launcher.node.rounds import Rounds
from launcher.node.told import Told
from launcher.plan import JobPlan
from launcher.post_mortem.symptoms import LOST_PEER

LATE = 3.0  # seconds that one who had to kill its ranks waits for the others
CLOSING = 10.0  # seconds that the master's agent waits for the others to have read the outcome
AT_ONCE = 0.2  # seconds for which the first agent's fork is awaited before this agent looks after its ranks
GONE = 0  # in the place of the process id of a rank that has ended: another process may have got its own
STACKS = 5.0  # seconds in which all agents have told the stacks of their ranks


class AttemptFailed(Exception):
    """The attempt ended early; the text is the cause, as the user should read it.

    Attributes:
        exit_code: what the job script decides by.
        ours: whether this agent was the first to know, and so is the one to print it.
        decides: whether it speaks for the attempt. One that never met the others does not: they may go on.
    """

    def __init__(self, cause: str, exit_code: int = errors.FAILED, *, ours: bool = True, decides: bool = False) -> None:
        super().__init__(cause)
        self.exit_code = exit_code
        self.ours = ours
        self.decides = decides


@dataclass(frozen=True)
class NextRound:
    """The ranks start again.

    Attributes:
        history: of the rounds, this one included.
        lost: indices of members that are gone.
    """

    history: History
    lost: tuple[int, ...] = ()


@dataclass
class Means:
    """What an agent keeps from one round to the next.

    Attributes:
        plan, attempt, events, told, rounds: see their classes.
        pulse, stacks: what its ranks write to.
        desk: where commands ask it something.
    """

    plan: JobPlan
    attempt: runs.Attempt
    events: Events
    told: Told
    rounds: Rounds
    pulse: Pulse
    stacks: watchdog.Stacks
    desk: Desk


class _Rendezvous(RendezvousHandler):
    """Hands a meeting that has taken place to the elastic agent."""

    def __init__(self, meeting: Meeting, index: int, run_id: str) -> None:
        self._meeting, self._index, self._run_id = meeting, index, run_id

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        meeting = self._meeting
        return RendezvousInfo(
            meeting.store, self._index, len(meeting.members), RendezvousStoreInfo(meeting.host, meeting.port)
        )

    def get_backend(self) -> str:
        return "launcher"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


class Agent(LocalElasticAgent):
    """The agent of one member of a meeting, for one round."""

    def __init__(self, means: Means, meeting: Meeting, index: int, history: History) -> None:
        plan = means.plan
        self.means, self._plan, self._events, self._told = means, plan, means.events, means.told
        self._meeting, self._index, self._history = meeting, index, history
        self._me = meeting.members[index]
        self._first_rank = sum(member.ranks for member in meeting.members[:index])
        self._board, self._next_care = Board(meeting, index, plan.heartbeat), 0.0
        # MPI's ranks, and programs, need not meet in our store.
        elsewhere = plan.backend == Backend.mpi.value or plan.kind == "Program" or not plan.params.get("init", True)
        self._join_by: float | None = math.inf if elsewhere or plan.debugs else None
        self._first = False
        self._listened = False  # some rank of this agent did
        self._step = -1
        # A rank that stands at a breakpoint is silent, as are those that wait for it.
        self._quiet = watchdog.Beats(math.inf if plan.debugs else plan.hang_timeout)
        self._stop_by: float | None = None  # ranks that are left then are killed
        self._handed: set[tuple[int, signal.Signals]] = set()
        self._minder = Minder(plan, os.environ, first=index == 0) if plan.goes_on else None
        self._program_told: set[int] = set()  # places of ranks of a program that have got their signal
        self._detective = self._told_stacks = self._too_late = False
        self._sockets: Path | None = None
        if plan.debugs:
            self._sockets = console.private_folder()
            os.environ[debug.SOCKETS] = str(self._sockets)
        self._before, self._memory = orphans.children(), memory.Watch()
        self._gate = multiprocessing.get_context("fork").Event()
        self._paces = Paces(plan, means.attempt, means.events, self._board, meeting, index, history.round)
        self._lives = history.round if history.listened else 0  # a preflight may have begun rounds before any rank
        means.pulse.clear()
        means.stacks.clear()
        spec = WorkerSpec(
            role="rank",
            local_world_size=self._me.ranks,
            rdzv_handler=_Rendezvous(meeting, index, plan.run_id),
            max_restarts=0,
            monitor_interval=1e-3,  # _monitor_workers waits
            entrypoint=run_rank,
            args=(plan, meeting.members, index, means.pulse, means.stacks, os.getpid(), self._lives, self._gate),
        )
        super().__init__(
            spec,
            Logs(means.attempt.logs, history.round),
            start_method="fork",
            exit_barrier_timeout=debug.FOREVER if plan.debugs else plan.timeout,
            log_line_prefix_template="[${rank}] ",
            shutdown_timeout=plan.grace,
        )

    # -- how the round ended

    def outcome(self, result: RunResult) -> NextRound | None:
        """What is next; None: the work is done.

        Raises:
            AttemptFailed: the attempt is over.
        """
        self._board.read_fault()
        if self._board.fault is None and not result.is_failed():
            return None
        fault = self._board.fault or {"cause": "the ranks failed", "then": Then.FAIL, "exit_code": errors.FAILED}
        if fault["then"] != Then.RESTART:
            raise AttemptFailed(fault["cause"], fault["exit_code"], ours=self._first, decides=self._first)
        history = self._history.after(fault["cause"], self._further(fault), counts=fault["kind"] != Kind.REGROUP)
        return NextRound(history, tuple(fault["lost"]))

    def stopped(self, number: signal.Signals) -> AttemptFailed:
        """The end of an attempt whose ranks cannot resume and whose agent was told to stop.

        It tells it, unless that came of another agent's sudden end.
        """
        silent = self._board.silent()
        cause = self._board.told_first() or self._was_told(number)
        if silent:
            cause = f"{', '.join(silent)} ended without a word (killed, or lost); then {cause}"
        self._tell(cause, Kind.KILLED, Then.FAIL, 128 + number)
        self._board.read_fault()
        assert self._board.fault is not None
        return AttemptFailed(
            self._board.fault["cause"], self._board.fault["exit_code"], ours=self._first, decides=self._first
        )

    def part(self) -> None:
        """The store lives in the first agent's process, so that one leaves last."""
        with contextlib.suppress(LineDead):
            self._board.count("parted", 1)
            give_up = time.monotonic() + CLOSING
            while self._index == 0 and self._board.count("parted") < len(self._meeting.members):
                if time.monotonic() > give_up:
                    break
                time.sleep(LOOK)

    def close(self) -> None:
        """No thread, no process and no temporary file of this round is left."""
        self._board.close()
        if self._pcontext and self._context._pc:  # torch leaves the file of a rank that raised in /tmp
            for path in self._context._pc.error_files:
                Path(path).unlink(missing_ok=True)
        orphans.kill(self._before)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    # -- what torch's agent asks for

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """All that torch's own would ask the others for is known from the meeting."""
        world = sum(member.ranks for member in self._meeting.members)
        ranks = [(local, self._first_rank + local) for local in range(self._me.ranks)]
        return [Worker(local, rank, rank, world, world) for local, rank in ranks]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Forks the ranks; they use the store when the first agent has forked all of its own.

        The thread that serves its store looks up the name of whoever connects. A process that is forked at that moment
        gets glibc's lock of the resolver as it is, held, and would wait for it for ever (1 of 77 restarts of 4 ranks).
        """
        with garbage_kept():
            started: dict[int, Any] = super()._start_workers(worker_group)
        if self._index == 0:
            with contextlib.suppress(LineDead):
                self._board.ask(lambda store: store.set("forked", "1"))
            self._gate.set()
        give_up = time.monotonic() + AT_ONCE
        while not self._gate.is_set() and time.monotonic() < give_up:
            self._open_gate()
            time.sleep(LOOK / 10)
        return started

    def _open_gate(self) -> None:
        """Lets the ranks use the store, if the first agent has forked its own."""
        if not self._gate.is_set():
            with contextlib.suppress(LineDead):  # which is looked at elsewhere
                if self._board.ask(lambda store: store.check(["forked"])):
                    self._gate.set()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._open_gate()
        self._wait_for_ranks()
        signs = self.means.pulse.signs()
        self._listened = self._listened or any(sign.listens for sign in signs)
        self._step = max(self._step, *(sign.step for sign in signs))
        self._hear()
        self._hand_on(signs)
        codes = self._codes()
        bad = [place for place, code in enumerate(codes) if code]
        if bad and self._resumable:
            return self._some_ended(signs, codes, bad)
        if self._plan.kind == "Program":
            self._count_done(codes)
        returned = any(not values.empty() for values in self._context._ret_vals.values())
        if self._resumable and not returned and not self._context._return_values:
            result = RunResult(state=WorkerState.HEALTHY)  # torch's own would give a failing round 30 s to end
        else:
            result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._tell_first_failure(result, signs)
        elif result.state == WorkerState.HEALTHY:
            silent = self._left_silently() if self._plan.kind != "Program" else None
            if silent is not None:
                cause = f"rank {silent} on {self._me.host} exited with code 0 before its work was done"
                self._judge(cause, Kind.RAISED, rank=silent)
                return RunResult(state=WorkerState.FAILED)
            if self._look_around(signs):
                return RunResult(state=WorkerState.FAILED)
        elif self._program_told:  # they left in time and may have more to do; if not, the next attempt is short
            self._tell_left(codes)
            self._exit_barrier()
            return RunResult(state=WorkerState.FAILED)
        return result

    def _exit_barrier(self) -> None:
        """Stays until the ranks of all agents have ended, or one has failed; the store is gone with the first agent."""
        patience = LATE if self._too_late else self._exit_barrier_timeout  # whoever told us to stop kills us next
        give_up = time.monotonic() + patience
        with contextlib.suppress(LineDead):
            self._board.count("ended", 1)
            while self._board.count("ended") < len(self._meeting.members) and time.monotonic() < give_up:
                self._hear()
                if self._look_around(()) or (self._leaving and self._board.lost()):
                    break
                time.sleep(self._board.pause)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._resumable:
            self._kill()  # what they have not saved is lost already
        else:
            self._told.ignore()
            with contextlib.suppress(LineDead):  # before the ranks are given their time to end
                if isinstance(error := sys.exc_info()[1], SignalException):  # torch calls this while it handles one
                    self._board.announce("stop", self._was_told(error.sigval))  # PBS tells the first node only
                self._board.leave()
        super()._shutdown(death_sig, self._shutdown_timeout)  # torch itself passes its own 30 s in one place

    # -- the ranks

    @property
    def _context(self) -> Any:
        """torch's context of the ranks' processes."""
        return self._pcontext

    @property
    def _resumable(self) -> bool:
        """Whether ranks can resume: one listens, or did in an earlier round."""
        return self._listened or self._history.listened or self._plan.goes_on

    def _codes(self) -> list[int | None]:
        """Exit codes of the ranks that have ended, by place."""
        return [process.exitcode for process in self._context._pc.processes]

    def _wait_for_ranks(self) -> None:
        """Returns when a rank has ended, or it is time for the next look."""
        alive = [process.sentinel for process in self._context._pc.processes if process.exitcode is None]
        multiprocessing.connection.wait(alive, self._board.pause)

    def _kill(self) -> None:
        """Kills all ranks, and waits until they are gone."""
        processes = self._context._pc.processes if self._pcontext and self._context._pc else []
        for process in processes:
            if process.is_alive():
                process.kill()
        for tail in self._context._tail_logs if processes else ():  # they take up to 0.1 s to notice, so tell them now
            for finished in tail._finished_events.values():
                finished.set()
        for process in processes:
            process.join(5)

    def _hand_on(self, signs: Sequence[Sign]) -> None:
        """Gives what this agent was told to the ranks that listen, once to each; kills those that do not leave."""
        wanted = [number for number, told in (
            (signal.SIGUSR2, self._told.warns() or self._board.heard.keys() & {"warning", "regroup"}),
            (signal.SIGTERM, self._ending),
        ) if told]  # fmt: skip
        for place, (process, sign) in enumerate(zip(self._context._pc.processes, signs, strict=True)):
            for number in wanted if sign.listens and process.exitcode is None else ():
                if (place, number) not in self._handed:
                    self._handed.add((place, number))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)
        if self._minder is not None:
            self._tell_program(self._minder, signs)
        if self._ending and self._stop_by is None:
            self._stop_by = time.monotonic() + self._plan.grace
        elif self._leaving and self._stop_by is None:
            self._stop_by = time.monotonic() + self._plan.hang_timeout
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            self._too_late = True
            self._kill()

    def _tell_program(self, minder: Minder, signs: Sequence[Sign]) -> None:
        """Gives each rank of a program its one signal to stop, whatever the cause."""
        asked = self._board.heard.keys() & {"warning", "regroup"} or self._told.warns()
        if not (self._ending or self._leaving or asked or errors.RESUME in self._codes()):
            return
        number = signal.Signals[self._plan.params["stop_signal"]]
        for place, (process, sign) in enumerate(zip(self._context._pc.processes, signs, strict=True)):
            if sign.listens or process.exitcode is not None or place in self._program_told:
                continue
            self._program_told.add(place)
            if self._stop_by is None:
                now = time.monotonic()
                self._stop_by = now + minder.patience(now)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _count_done(self, codes: Sequence[int | None]) -> None:
        """A rank that became another program returns nothing; for torch's agent its exit code 0 is as good."""
        for place, code in enumerate(codes):
            values = self._context._ret_vals[place]
            if code == 0 and place not in self._context._return_values and values.empty():
                values.put({})

    def _some_ended(self, signs: Sequence[Sign], codes: Sequence[int | None], bad: Sequence[int]) -> RunResult:
        """Some rank of a round that can resume has ended with an exit code that is not 0."""
        failed = RunResult(state=WorkerState.FAILED)
        as_told = self._program_told and errors.NO_RETRY not in codes  # with whatever other exit code
        if any(codes[place] == errors.RESUME for place in bad) or self._leaving or self._too_late or as_told:
            if self._stop_by is None:
                self._stop_by = time.monotonic() + self._plan.hang_timeout
            if self._at_work(codes) and time.monotonic() < self._stop_by:  # the others are saving, or writing
                self._look_around(signs)
                return RunResult(state=WorkerState.HEALTHY)
            self._tell_left(codes)
            self._exit_barrier()
            return failed
        # Of several the one that was killed: an error may have come of that.
        place = min(bad, key=lambda place: (codes[place] != errors.NO_RETRY, (codes[place] or 0) >= 0))
        self._kill()
        code, pid = codes[place] or errors.FAILED, self._context._pc.pids()[place]
        failure = ProcessFailure(place, pid, code, self._error_file(place))
        self._tell_failure(self._first_rank + place, failure, signs[place])
        return failed

    def _at_work(self, codes: Sequence[int | None]) -> bool:
        """Whether a rank has neither ended nor returned; one that has returned waits until torch has read its value."""
        return any(code is None and self._context._ret_vals[place].empty() for place, code in enumerate(codes))

    @property
    def _leaving(self) -> bool:
        """Whether ranks of another agent have left to resume later."""
        return self._board.fault is not None and self._board.fault["kind"] in (Kind.LEFT, Kind.REGROUP)

    def _error_file(self, place: int) -> str:
        return str(self._context.error_files[place])

    def _left_silently(self) -> int | None:
        """A rank that ended with code 0 but without returning (os._exit(0)); torch would wait for it for ever."""
        for place, code in enumerate(self._codes()):
            if code == 0 and place not in self._context._return_values and self._context._ret_vals[place].empty():
                return self._first_rank + place
        return None

    # -- what is told

    def _tell_first_failure(self, result: RunResult, signs: Sequence[Sign]) -> None:
        if result.failures:
            rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
            if failure.exitcode == errors.RESUME:
                self._tell_left(self._codes())
            else:
                self._tell_failure(rank, failure, signs[rank - self._first_rank])

    def _tell_failure(self, rank: int, failure: ProcessFailure, sign: Sign) -> None:
        data = failure.error_file_data.get("message")
        trace = data.get("extraInfo", {}).get("py_callstack", "") if isinstance(data, dict) else ""
        kind = Kind.RAISED
        if isinstance(data, dict) and trace:
            trace = users_frames(trace)
            how = data["message"].split("\n")[0]
            kind = Kind.LOST_PEER if LOST_PEER.search(data["message"]) else Kind.RAISED
        elif failure.exitcode < 0:
            how, kind = f"killed by {signal.Signals(-failure.exitcode).name}", Kind.KILLED
        else:
            how = f"exited with code {failure.exitcode}"
        kind = Kind.NO_RETRY if failure.exitcode == errors.NO_RETRY else kind
        cause = f"rank {rank} on {self._me.host}: {how}"
        if kind is Kind.LOST_PEER and self._resumable:  # nobody else has said a word, and this is not its fault
            cause, trace = f"rank {rank} on {self._me.host} lost another rank ({how})", ""
            if self._ending and (silent := self._board.silent()):
                cause = f"{', '.join(silent)} ended without a word (killed, or lost)"
        self._judge(
            cause, kind, listens=not sign.gives_up and self._resumable, rank=rank, traceback=trace,
            code=failure.exitcode, memory=self._memory.told(),
        )  # fmt: skip

    def _tell_left(self, codes: Sequence[int | None]) -> None:
        """Ranks have left with exit code 75."""
        left = [self._first_rank + place for place, code in enumerate(codes) if code == errors.RESUME]
        host = self._me.host
        # Another agent may have told it, and its ranks these ones, before this agent has looked.
        cause = self._cause_of_stop() or self._board.told_first() or self._board.heard.get("warning")
        if cause is None:
            ranks = ("rank " if len(left) == 1 else "ranks ") + ", ".join(map(str, left))
            cause = f"{ranks} on {host} left with exit code {errors.RESUME}"
            if not left:
                cause = f"the ranks on {host} did not leave in time"
        if self._too_late:
            cause += f"; ranks on {host} did not leave within {self._plan.grace} s and were killed"
        kind = Kind.REGROUP if "regroup" in self._board.heard and not self._ending else Kind.LEFT
        self._judge(f"stopped: {cause}" if kind is Kind.LEFT else self._board.heard["regroup"], kind)

    def _cause_of_stop(self) -> str | None:
        """What the ranks themselves said about it."""
        events = list(event_file.read(self.means.attempt.events_file("stop")))
        return str(events[-1]["cause"]) if events and "cause" in events[-1] else None

    def _judge(
        self, cause: str, kind: Kind, *, listens: bool | None = None, lost: Sequence[int] = (), **details: Any
    ) -> None:
        """Decides what is done about it, and tells that."""
        left = len(self._meeting.members) - len(lost)
        if self._minder is not None and self._minder.saved():
            details["saved"] = True
        then = decide(
            kind,
            self._history,
            self._further(details),
            listens=self._resumable if listens is None else listens,
            stopping=self._ending,
            enough=left >= self.means.rounds.least,
            max_restarts=self._plan.max_restarts,
        )
        if then is Then.FAIL and kind is not Kind.RAISED:
            cause = given_up(cause, self._history, self._plan.max_restarts)
        self._tell(cause, kind, then, then.exit_code, lost=list(lost), **details)

    def _further(self, fault: Mapping[str, Any]) -> int:
        """How far the round got: what a program has saved counts, whether it tells steps or not."""
        step: int = fault.get("step", self._step)
        return max(step, self._history.best + 1) if fault.get("saved") else step

    def _tell(self, cause: str, kind: Kind, then: Then, exit_code: int, **details: Any) -> None:
        """Tells all agents; the first one to speak is believed."""
        fault = {
            "cause": cause, "exit_code": exit_code, "host": self._me.host, "node": self._me.node_rank,
            "member": self._me.index, "kind": kind.value, "then": then.value, "step": self._step, "lost": [], **details,
        }  # fmt: skip
        self._first = self._board.tell_fault(fault)
        if not self._first:
            return
        shown = {name: value for name, value in fault.items() if name not in ("then", "member", "lost")}
        if then is Then.RESTART:
            number = self._history.round + 1
            world = sum(member.ranks for member in self._meeting.members)
            del shown["exit_code"]
            self._events("restart", round=number, world_size=world, **shown)
            at = f" (at step {self._step})" if self._step >= 0 else ""
            with contextlib.suppress(OSError):  # nobody may be there any more who reads it
                print(f"launcher: {cause}{at}; the ranks start again, round {number}", file=sys.stderr, flush=True)
        elif kind is Kind.LEFT:
            if self._cause_of_stop() is None:
                told = {"step": self._step} if self._step >= 0 else {}
                self._events("stop", cause=cause.removeprefix("stopped: "), host=self._me.host, **told)
        else:
            self._events("fault", **shown)

    def _was_told(self, number: signal.Signals) -> str:
        return f"{self._me.host} was told to stop ({number.name})"

    # -- what is heard

    @property
    def _ending(self) -> bool:
        """Whether this agent or another one was told to stop at once."""
        return self._told.ends() is not None or "stop" in self._board.heard

    def _hear(self) -> None:
        """Takes in signals, and tells the others of them.

        Raises:
            SignalException: the ranks cannot be left to save.
        """
        ends = self._told.ends()
        if not self._resumable and (ends or "stop" in self._board.heard):
            raise SignalException("told to stop", ends or signal.SIGTERM)
        with contextlib.suppress(LineDead):
            if ends and "stop" not in self._board.heard:
                self._board.announce("stop", self._was_told(ends))
            if (warns := self._told.warns()) and "warning" not in self._board.heard:
                self._board.announce("warning", self._was_told(warns))

    def _look_around(self, signs: Sequence[Sign]) -> bool:
        """Beats, and looks at what others tell, at silent ranks and agents; whether there is a fault."""
        try:
            self._board.look()
        except LineDead as error:
            self._lost_master(str(error))
            return True
        if self._board.fault is not None:
            return not (self._leaving and self._resumable)  # those that leave are given their time
        now = time.monotonic()
        if now >= self._next_care:
            self._next_care = now + min(1.0, self._plan.hang_timeout / 4, self._plan.heartbeat / 4)
            return self._take_care(signs, now)
        return False

    def _take_care(self, signs: Sequence[Sign], now: float) -> bool:
        """What is looked at less often; whether there is a fault."""
        minds = self._minder is not None and signs and not self._listened and "stop" not in self._board.heard
        if minds and (cause := self._minder.cause(now)):  # type: ignore[union-attr]
            with contextlib.suppress(LineDead):
                self._board.announce("stop", cause)
        self._answer(signs)
        if signs and "hang" not in self._board.heard and (silent := self._quiet.silent(signs, now)):
            ranks = ", ".join(str(self._first_rank + place) for place in silent)
            self._detective = True
            with contextlib.suppress(LineDead):
                self._board.announce("hang", f"rank {ranks} on {self._me.host}")
        if "hang" in self._board.heard and signs and not self._told_stacks:
            self._told_stacks = True
            self._tell_stacks(signs)
            if self._detective and self._board.heard["hang"].endswith(self._me.host):
                self._blame()
                return True
        if not self._plan.debugs:  # a rank that is stepped through is not a slow one
            self._paces.look(self.means.pulse.paces(), now)
        if self._index == 0:
            if self._not_joined():
                return True
            if lost := self._board.lost():
                hosts = ", ".join(self._meeting.members[place].host for place in lost)
                cause = f"{hosts} has not been heard of for {self._plan.heartbeat} s (launch.heartbeat)"
                self._judge(cause, Kind.LOST_NODE, lost=[self._meeting.members[place].index for place in lost])
                return True
            self._invite()
        return False

    def _answer(self, signs: Sequence[Sign]) -> None:
        """Answers what a command asks; the first agent hands it on to the others."""
        if self._index == 0 and (question := self.means.desk.question()):
            with contextlib.suppress(LineDead):
                self._board.hand_on(question)
        if asked := self._board.heard.get("asked"):
            known = signs or self.means.pulse.signs()  # of ranks that have ended and wait for others: their last ones
            self.means.desk.answer(asked, self._index, self._me.host, lambda: self._processes(known))

    def _processes(self, signs: Sequence[Sign]) -> list[Process]:
        pids, codes = self._context.pids(), self._codes()
        return [
            Process(
                self._first_rank + place,
                pids[place] if codes[place] is None else GONE,
                sign.step,
                self._environment(place),
            )
            for place, sign in enumerate(signs)
        ]

    def _environment(self, place: int) -> dict[str, str]:
        """The variables of one of the ranks; see `run_rank`."""
        own = {name: value for name, value in os.environ.items() if name not in AGENTS_OWN}
        return {**own, **self._context.envs[place], **place_variables(self._meeting.members, self._index, place)}

    def _lost_master(self, why: str) -> None:
        host, master = self._me.host, self._meeting.members[0]
        cause = f"{host} lost contact with {master.host}, which runs rank 0"
        if self._ending:
            cause = f"{master.host} ended without a word (killed, or lost)"
        self._judge(cause, Kind.LOST_NODE, lost=[master.index], why=why)

    # -- ranks that do not join, or hang; nodes that come back

    def _not_joined(self) -> bool:
        """Whether time is up for ranks that hang before they join the others; the ranks themselves may all do."""
        if self._join_by is None:
            self._join_by = time.monotonic() + self._plan.rendezvous_timeout
        if self._join_by == float("inf"):
            return False

        def joined(store: Store) -> list[int]:
            ranks = PrefixStore(f"ranks/{self._history.round}", store)
            world = sum(member.ranks for member in self._meeting.members)
            if ranks.check(["all joined"]):
                return []
            if time.monotonic() < (self._join_by or 0.0):
                return [-1]
            return [rank for rank in range(world) if not ranks.check([f"joined/{rank}"])]

        try:
            missing = self._board.ask(joined)
        except LineDead:
            return False
        if missing == [-1]:
            return False
        if not missing:
            self._join_by = float("inf")
            return False
        owners = [member for member in self._meeting.members for _ in range(member.ranks)]
        hosts = ", ".join(dict.fromkeys(owners[rank].host for rank in missing))
        self._judge(
            f"rank {', '.join(map(str, missing))} on {hosts} did not join the others within "
            f"{self._plan.rendezvous_timeout} s: does an import hang?",
            Kind.HUNG,
        )
        return True

    def _tell_stacks(self, signs: Sequence[Sign]) -> None:
        """Saves the stacks of this agent's ranks, and tells them."""
        taken = self.means.stacks.take(self._context._pc.pids())
        reports = []
        for place, (sign, (state, stack)) in enumerate(zip(signs, taken, strict=True)):
            rank = self._first_rank + place
            reports.append(asdict(watchdog.Report(rank, self._me.host, sign.step, state, stack)))
            path = self.means.attempt.logs / log_name(rank, self._history.round, "stacks")
            with (
                contextlib.suppress(OSError),
                open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file,
            ):
                file.write(stack or f"rank {rank} wrote no stack; its process is in state {state or 'gone'}\n")
        text = json.dumps(reports)
        with contextlib.suppress(LineDead):
            self._board.ask(lambda store: store.set(f"stacks/{self._index}", text))

    def _blame(self) -> None:
        """Waits for the stacks of all ranks and tells which rank hangs."""
        keys, give_up = [f"stacks/{place}" for place in range(len(self._meeting.members))], time.monotonic() + STACKS

        def told(store: Store) -> list[bytes]:
            return [store.get(key) for key in keys if store.check([key])]

        reports: list[watchdog.Report] = []
        with contextlib.suppress(LineDead):
            while len(texts := self._board.ask(told)) < len(keys) and time.monotonic() < give_up:
                time.sleep(0.05)
            reports = [watchdog.Report(**each) for text in texts for each in json.loads(text)]
        guilty, why = watchdog.suspects(reports)
        names = "; ".join(f"rank {each.rank} on {each.host}" for each in guilty[:4])
        step = min((each.step for each in guilty), default=self._step)
        self._judge(
            f"{names or self._board.heard['hang']} {why}: "
            f"no step for {self._plan.hang_timeout} s (launch.hang_timeout) after step {step}; "
            f"the stacks of all ranks are in {self.means.attempt.logs}",
            Kind.HUNG,
            rank=guilty[0].rank if guilty else None,
        )

    def _invite(self) -> None:
        """Has a new round begun for members that wait, once this one has got somewhere; they lose nothing by it."""
        rounds = self.means.rounds
        if len(self._meeting.members) == rounds.size:
            return
        rounds.show_life(self._history.round)
        if "regroup" in self._board.heard or self._ending or self._step <= self._history.best or not self._resumable:
            return
        if waiting := rounds.waiting():
            with contextlib.suppress(LineDead):
                self._board.announce("regroup", f"{rounds.names(waiting)} came back")
