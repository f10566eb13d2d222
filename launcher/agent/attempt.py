"""This node's part of an attempt: its agent meets the others, has this node's ranks run, and says how it ended.

After a failure that ranks can resume from, they start again in the next round; see `supervisor` and `coordinator`.
torch is loaded once; ranks are forked from here before any GPU is touched.
With launch=tasks every rank has an agent of its own, started by the scheduler, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from launcher import errors
from launcher.agent.binding import Binder
from launcher.agent.control import AttemptOver, Control, Overtaken
from launcher.agent.coordinator import Limits
from launcher.agent.failures import failure_to_end, failure_to_start
from launcher.agent.restart_policy import History, Kind
from launcher.agent.restart_policy import Then as Action
from launcher.agent.signals import Signals, StopRequested
from launcher.agent.supervisor import AttemptFailed, Done, Means, NextRound, Supervisor
from launcher.agent.workers import Fresh, Placement, StartError, WorkerGroup, WorkersStillThere, placements
from launcher.attach.request_handler import RequestHandler
from launcher.binding.masks import BindingRefused
from launcher.config.schema import Backend, LaunchMode
from launcher.failures import text
from launcher.failures.codes import FaultCode, PreflightThen
from launcher.files.shared_files import is_transient
from launcher.log_line import log_line
from launcher.preflight.attempt import Preflight
from launcher.preflight.bad_nodes import Verdict
from launcher.processes import orphans
from launcher.rendezvous import store
from launcher.rendezvous.protocol import LeaderLost, Meeting, Member, RendezvousError
from launcher.runs import directory, event_json
from launcher.runs.event_writer import Events, current_attempt
from launcher.runs.events import Accused, Fault, Finished, Met, Place, Resized
from launcher.schedulers import topology
from launcher.spec.plan import JobPlan
from launcher.worker import debug_console, debugger, devices, hangs, preload
from launcher.worker.flight_recorder import Recorders
from launcher.worker.heartbeat import Pulse
from launcher.worker.main import AGENTS_OWN, fresh_command, ignored_signals, run_rank


def run(run_dir: str) -> dict[str, Any]:
    """Runs this node's part of the attempt: the payload of every job.

    Returns:
        The metrics of the first rank of this agent.

    Raises:
        AttemptFailed: with the cause and the exit code that the job script decides by.
    """
    attempt = current_attempt()
    if attempt is None:
        raise AttemptFailed(f"{run_dir}: not started by a job script of the launcher", errors.NO_RETRY)
    try:
        plan = attempt.run.plan()
    except errors.UnavailableError:
        raise  # whoever called this tells it, and the run is resumed
    except errors.RunError as error:
        raise AttemptFailed(f"{socket.gethostname()}: {error}", errors.NO_RETRY) from None
    signals = Signals()
    signals.install()  # submitit has just installed its own
    orphans.adopt()
    try:
        place = topology.derive(os.environ, socket.gethostname(), lambda path: Path(path).read_text())
    except topology.TopologyError as error:
        raise AttemptFailed(f"{socket.gethostname()}: {error}", errors.NO_RETRY) from None
    tells, host = Events(attempt, f"node-{place.rank}"), place.hosts[place.node_rank]
    try:
        if not _can_enter(plan.workdir):
            tells(Fault(cause=plan.no_workdir, code=FaultCode.NO_FOLDER, host=host, ends_with=errors.NO_RETRY))
            raise AttemptFailed(f"{host}: {plan.no_workdir}", errors.NO_RETRY, decides=plan.min_nodes == plan.nodes)
        return _Agent(plan, attempt, place, tells, signals).run()
    except AttemptOver as over:
        print(f"launcher: {host} waited to join, and is not needed any more: {over}", file=sys.stderr)
        return {}
    except _LeftOut:
        return {}
    except RendezvousError as error:
        per_node = plan.tasks_per_node
        accused = tuple(Accused(place.hosts[index // per_node]) for index in error.accused)
        tells(Fault(cause=str(error), code=error.code, host=host, accused=accused))
        raise AttemptFailed(str(error), ours=not error.from_leader, decides=place.rank == 0) from None
    except StopRequested as request:
        cause = text.asked_to_stop(host, request.number.name, "before its ranks had started")
        tells(Fault(cause=cause, code=FaultCode.STOPPED_EARLY, host=host, signal=request.number.name))
        raise AttemptFailed(cause, 128 + request.number) from None
    except (errors.RunError, OSError, Overtaken, LeaderLost) as error:
        failed = failed_by(error, host)
        code = (
            FaultCode.UNREADABLE if isinstance(error, errors.RunError)
            else FaultCode.LEADER_LOST if isinstance(error, (LeaderLost, Overtaken))
            else FaultCode.AGENT
        )  # fmt: skip
        tells(Fault(cause=str(failed), code=code, host=host, error=str(error), ends_with=failed.exit_code))
        raise failed from None


def _can_enter(folder: str) -> bool:
    """Whether a folder is there for this process. Where it is not, Slurm starts a task in /tmp, and says so in a log.

    Raises:
        OSError: nobody can tell now.
    """
    try:
        return bool(os.stat(f"{folder}/."))
    except OSError as error:
        if is_transient(error):
            raise
        return False


def failed_by(error: Exception, host: str) -> AttemptFailed:
    """What becomes of an error of the system that an agent cannot go on after. Pure.

    | error | the attempt |
    |---|---|
    | passes: the file server does not answer, no file descriptor or memory is left | is resumed |
    | lost its leader, or was overtaken, where nobody expected it | is resumed |
    | of a run that is damaged | would fail again: it is final |
    | any other: no permission, a full disk | fails |

    Args:
        error: an OSError, a RunError, LeaderLost or Overtaken.
        host: of the agent.
    """
    if is_transient(error) or isinstance(error, (Overtaken, LeaderLost)):
        code = errors.RESUME
    else:
        code = errors.NO_RETRY if isinstance(error, errors.RunError) else errors.FAILED
    return AttemptFailed(f"the agent on {host} cannot go on: {error}", code, decides=True)


class _LeftOut(Exception):
    """The preflight found this node bad, and the others continue without it."""


class _Agent:
    """The agent of one node, or of one rank."""

    def __init__(
        self, plan: JobPlan, attempt: directory.Attempt, place: topology.Topology, tells: Events, signals: Signals
    ) -> None:
        self._plan, self._attempt, self._events, self._signals = plan, attempt, tells, signals
        self._source = place.source
        per_task = plan.launch.mode == LaunchMode.tasks.value
        self.me = Member(
            place.rank,
            place.node_rank,
            place.hosts[place.node_rank],
            ranks=1 if per_task else plan.procs_per_node,
            first_local_rank=place.local_rank,
        )
        per_node = plan.procs_per_node if per_task else 1
        self._limits = limits(plan, attempt.logs)
        self._control = Control(
            self.me,
            attempt=attempt.path,
            limits=self._limits,
            names=_names(plan, place),
            hosts=[host + plan.cluster.host_suffix for host in place.hosts for _ in range(per_node)],
            secret=attempt.run.secret(),
            key=f"{plan.run_id}/{attempt.number}/{place.job}",
            port_range=plan.cluster.port_range,
            join_timeout=plan.launch.rendezvous_timeout,
            signals=signals,
            blame=hangs.blame,
        )
        stacks = hangs.Stacks(self.me.ranks)
        self._means = Means(
            plan, attempt, tells, signals, Pulse(self.me.ranks), stacks, RequestHandler(attempt, stacks)
        )
        self._workers = WorkerGroup(attempt.logs, fresh=self._fresh)
        self._binder = Binder(plan, os.environ)
        self._folder: Path | None = None  # of the flight recorders
        if plan.gpus_per_node and plan.workload.backend in (Backend.auto.value, Backend.nccl.value):
            self._folder = debug_console.private_folder()
            renamed = hasattr(torch._C._distributed_c10d, "_dump_fr_trace")
            self._means.recorders = Recorders(self._folder, os.environ, renamed=renamed)
            os.environ.update(self._means.recorders.variables)
        self._lives = 0  # how often ranks of this attempt were started before; a preflight may begin rounds before any

    def run(self) -> dict[str, Any]:
        """The metrics of the first rank, when the work is done."""
        try:
            return self._run()
        finally:
            self._signals.ignore()
            self._control.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> dict[str, Any]:
        self._preload()  # before the agents meet: nobody sends heartbeats meanwhile
        history, meeting = self._control.first()
        set_network(self._plan, meeting, self.me.host)
        if self._plan.preflight and history.round == 0:
            history, meeting = self._preflighted(meeting)
        while True:
            self._events(
                Met(
                    port=meeting.port, members=len(meeting.members), ranks=meeting.world_size,
                    interface=meeting.interface, source=self._source, host=self.me.host, torch=torch.__version__,
                    round=history.round,
                )
            )  # fmt: skip
            try:
                outcome = self._round(history, meeting)
            except AttemptFailed as failed:
                if not self._continued_by_others(history.round + 1, wait=failed.suspended is not None):
                    if failed.suspended is not None and failed.ours:
                        self._events(failed.suspended)
                    raise
                history, meeting = self._control.join()  # the others have continued without this agent
                continue
            if isinstance(outcome, Done):
                break
            before = meeting
            history, meeting = self._next(outcome, meeting)
            if meeting.place_of(self.me.index) == 0:
                self._tell_changes(history.round, before, meeting)
        self._events(Finished())
        if meeting.place_of(self.me.index) == 0:
            self._attempt.write_exit_code(errors.DONE)
        return outcome.metrics

    def _continued_by_others(self, number: int, *, wait: bool) -> bool:
        """Whether others are in this round without this agent.

        Args:
            number: the round.
            wait: give them the time that they need to begin it.
        """
        if not self._control.elastic:
            return False
        try:
            return self._control.others_begin(number) if wait else self._control.begun(number)
        except (RendezvousError, StopRequested):  # nobody can tell, or there is no time
            return False

    def _round(self, history: History, meeting: Meeting) -> Done | NextRound:
        """One life of the ranks."""
        plan, means = self._plan, self._means
        place = meeting.place_of(self.me.index)
        assert place is not None
        means.pulse.clear(meeting.world_size)
        means.stacks.clear()
        sockets = debug_console.private_folder() if plan.debugs else None
        if sockets is not None:
            os.environ[debugger.SOCKETS] = str(sockets)
        ranks = placements(
            meeting.members, place, master=(meeting.host, meeting.port), run_id=plan.run_id,
            round_number=history.round, max_restarts=plan.launch.max_restarts, environ=os.environ,
        )  # fmt: skip
        ranks = self._bound(meeting, place, ranks)
        own = {name: value for name, value in os.environ.items() if name not in AGENTS_OWN}
        means.environments = [
            {**seen, **devices.variables(plan, seen)} for seen in ({**own, **rank.environment} for rank in ranks)
        ]
        ranks_store: store.RanksStore | None = None
        try:
            self._lives = history.round if history.listened else 0
            self._start(meeting, ranks)
            if meeting.listener is not None:
                ranks_store = self._serve(meeting, meeting.listener)
            self._workers.open_gate()
            return Supervisor(means, self._control, self._workers, meeting, place, history).run()
        finally:
            if ranks_store is not None:
                ranks_store.close()
            self._workers.close()
            if sockets is not None:
                shutil.rmtree(sockets, ignore_errors=True)

    def _bound(self, meeting: Meeting, place: int, ranks: list[Placement]) -> list[Placement]:
        """The ranks with the CPUs that they may run on, which is told.

        Raises:
            RendezvousError: a list of launch.bind does not fit this node.
        """
        try:
            ranks, told = self._binder.bind(meeting.members, place, ranks)
        except BindingRefused as error:
            raise RendezvousError(f"{self.me.host}: {error}", code=FaultCode.REFUSED) from None
        self._events(told)
        return ranks

    def _files(self, placement: Placement) -> dict[str, int]:
        """What a rank shares with its agent."""
        means = self._means
        return {"pulse_file": means.pulse.share(), "stacks_file": means.stacks.file(placement.place)}

    def _fresh(self, placement: Placement) -> Fresh:
        files = self._files(placement)
        return Fresh(fresh_command(placement.place, **files, lives=self._lives), list(files.values()))

    def _start(self, meeting: Meeting, ranks: Sequence[Placement]) -> None:
        """Starts the ranks.

        Raises:
            AttemptFailed: this node cannot start them.
        """

        def run(placement: Placement) -> dict[str, Any]:
            return run_rank(self._plan, placement.place, **self._files(placement), lives=self._lives)

        try:
            self._workers.start(
                ranks, run, round_number=int(ranks[0].environment["LAUNCHER_ROUND"]),
                close_in_child=self._control.descriptors(), ignore=ignored_signals(self._lives),
            )  # fmt: skip
        except StartError as error:
            told = failure_to_start(error, self.me.host, time.time()).told
            raise self._cannot_start(meeting, told) from None
        except WorkersStillThere as error:
            told = failure_to_end(error.left, self.me.host, time.time()).told
            raise self._cannot_start(meeting, told) from None

    def _serve(self, meeting: Meeting, listener: socket.socket) -> store.RanksStore:
        """The store of the ranks, on the leader.

        Raises:
            AttemptFailed: torch cannot serve it, for want of threads or file descriptors.
        """
        try:
            return store.RanksStore(listener, meeting.addresses)
        except (RuntimeError, OSError) as error:
            cause = f"{self.me.host} cannot serve the ranks' store: {error}"
            told = {"cause": cause, "code": FaultCode.AGENT.value, "error": str(error)}
            raise self._cannot_start(meeting, told) from None

    def _cannot_start(self, meeting: Meeting, told: dict[str, Any]) -> AttemptFailed:
        """This node is of no use now: the others hear so, and may continue without it."""
        cause: str = told["cause"]
        told = {**told, "host": self.me.host, "node": self.me.node_rank, "accused": [{"host": self.me.host}]}
        self._control.send({
            **told, "type": "failure", "kind": Kind.LOST_NODE.value, "listens": True, "exit_code": None,
            "member": meeting.members[0].index, "step": -1, "lost": [self.me.index],
        })  # fmt: skip
        coordinator = self._control.coordinator
        if coordinator is None:  # the leader tells of it, and speaks for the attempt
            return AttemptFailed(cause, errors.RESUME, ours=False, decides=not self._control.elastic)
        self._events(event_json.from_entry({**told, "event": Fault.event}))
        verdict = coordinator.verdict or {}
        return AttemptFailed(cause, errors.RESUME, decides=verdict.get("then") != Action.RESTART.value)

    def _next(self, outcome: NextRound, before: Meeting) -> tuple[History, Meeting]:
        """The next round.

        Raises:
            AttemptFailed: it does not begin; the run can be resumed.
            AttemptOver: the others continued without this agent, and have ended.
        """
        history = outcome.history
        try:
            if self.me.index not in outcome.lost:
                return self._control.next(history, before, outcome.lost)
        except Overtaken:
            pass
        except RendezvousError as error:
            enough = len(before.members) - 1 >= self._limits.least  # without this agent
            if enough and self._continued_by_others(history.round, wait=True):
                return self._control.join()
            raise AttemptFailed(
                f"{error}; before that: {history.first}", errors.RESUME, ours=not error.from_leader,
                decides=not error.from_leader,
            ) from None  # fmt: skip
        except StopRequested as request:
            cause = text.asked_to_stop(self.me.host, request.number.name, "between two rounds")
            raise AttemptFailed(cause, errors.RESUME, decides=True) from None
        return self._control.join()

    def _preflighted(self, meeting: Meeting) -> tuple[History, Meeting]:
        """The first round whose nodes are all found fine: bad ones are left out, and the others meet again.

        Raises:
            _LeftOut: this node is bad.
            AttemptFailed: too few nodes are left.
            RendezvousError: the others did not meet again.
        """
        number = 0
        while True:
            verdict = Preflight(
                self._plan, self._attempt, self._events, self._control, meeting, round_number=number
            ).run()
            if verdict.then is PreflightThen.GO:
                return History(round=number), meeting
            leads = meeting.place_of(self.me.index) == 0
            if verdict.then is PreflightThen.FAIL:
                if leads:
                    self._events(preflight_fault(verdict, meeting, self.me.host))
                raise AttemptFailed(verdict.cause, verdict.exit_code, ours=leads, decides=leads)
            if self.me.index in verdict.lost:
                raise _LeftOut
            before, number = meeting, number + 1
            try:
                _, meeting = self._control.next(History(round=number), before, verdict.lost)
            except Overtaken:
                return self._control.join()
            if meeting.place_of(self.me.index) == 0:
                self._tell_changes(number, before, meeting)

    def _preload(self) -> None:
        """Imports what ranks share, as far as it is the launcher's own.

        An import that fails, or hangs, is left to the ranks: the user sees their traceback, or which is missing.
        """

        def too_long(*_: object) -> None:
            raise TimeoutError

        previous = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(self._plan.launch.rendezvous_timeout)
        try:
            with contextlib.suppress(Exception):
                for name in preload.modules(self._plan.workload.entry):
                    importlib.import_module(name)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)

    def _tell_changes(self, number: int, before: Meeting, now: Meeting) -> None:
        """Says who does not take part any more, and who is back."""
        old, new = ({member.index: member for member in meeting.members} for meeting in (before, now))
        if old.keys() == new.keys():
            return
        resized = Resized(
            round=number, members=len(new), world_size=now.world_size, size=self._control.size,
            without=self._places(old, old.keys() - new.keys()), back=self._places(new, new.keys() - old.keys()),
        )  # fmt: skip
        self._events(resized)
        log_line(text.of_resized(resized))

    def _places(self, members: Mapping[int, Member], indices: Collection[int]) -> tuple[Place, ...]:
        """Where these members are."""
        return tuple(place_of(self._plan, members[index]) for index in sorted(indices))


def preflight_fault(verdict: Verdict, meeting: Meeting, host: str) -> Fault:
    """The event of a preflight that ends the attempt. Pure.

    Args:
        verdict: of all nodes.
        meeting: who took part.
        host: of the agent that tells it.
    """
    hosts = dict.fromkeys(member.host for member in meeting.members if member.index in verdict.lost)
    return Fault(
        cause=verdict.cause, code=FaultCode.PREFLIGHT, host=host, accused=tuple(map(Accused, hosts)),
        ends_with=verdict.exit_code,
    )  # fmt: skip


def limits(plan: JobPlan, logs: Path) -> Limits:
    """The settings that the leading agent goes by. Pure."""
    # MPI's ranks, and programs, need not use our store to meet. A rank at a breakpoint is silent, as are the others.
    elsewhere = (
        plan.workload.backend == Backend.mpi.value
        or plan.workload.kind == "Program"
        or not plan.workload.params.get("init", True)
    )
    watched = not plan.debugs
    return Limits(
        least=plan.min_nodes * plan.tasks_per_node,
        rendezvous_timeout=None if elsewhere or not watched else plan.launch.rendezvous_timeout,
        start_timeout=plan.launch.start_timeout if watched else None,
        idle_timeout=plan.launch.idle_timeout if watched else None,
        hang_timeout=plan.launch.hang_timeout if watched else None,
        heartbeat=plan.launch.heartbeat,
        max_restarts=plan.launch.max_restarts,
        stacks_in=str(logs),
    )


def _names(plan: JobPlan, place: topology.Topology) -> list[str]:
    """What to call each member in an error."""
    if plan.launch.mode == LaunchMode.tasks.value:
        per_node = plan.procs_per_node
        places = [Place(host=place.hosts[task // per_node], node=task // per_node, task=task)
                  for task in range(place.world_size)]  # fmt: skip
    else:
        places = [Place(host=host, node=node) for node, host in enumerate(place.hosts)]
    return [text.of_place(each) for each in places]


def place_of(plan: JobPlan, member: Member) -> Place:
    """Where a member is. Pure."""
    task = member.index if plan.launch.mode == LaunchMode.tasks.value else None
    return Place(host=member.host, node=member.node_rank, task=task)


def set_network(plan: JobPlan, meeting: Meeting, host: str) -> None:
    """Tells gloo and NCCL which interface to use: the profile's, else (gloo) the one that reached the leader.

    Raises:
        RendezvousError: this host does not have the profile's.
    """
    if plan.cluster.interface:
        known = [name for _, name in socket.if_nameindex()]
        if missing := [name for name in plan.cluster.interface.split(",") if name not in known]:
            raise RendezvousError(
                f"{host} has no network interface {', '.join(missing)} (cluster.interface); it has {', '.join(known)}",
                code=FaultCode.REFUSED,
            )
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, plan.cluster.interface)
    elif meeting.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.interface)
