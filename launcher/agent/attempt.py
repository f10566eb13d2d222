"""Runs one node's part of an attempt: its agent joins the rendezvous, runs the node's ranks, and reports the end."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from launcher import errors, processes
from launcher.agent.leader_connection import AskedToStop, AttemptOver, LeaderConnection, NobodyLeads, Overtaken, Signals
from launcher.agent.policy import AttemptFailed, Done, History, NextRound, RoundEnd, RoundFailure, fault_of_end
from launcher.agent.preflight import Preflight
from launcher.agent.rank_watch import AgentContext, GpuWatch
from launcher.agent.supervisor import Supervisor
from launcher.agent.workers import Fresh, StartError, WorkerGroup, preload
from launcher.attach import RequestHandler
from launcher.binding import hardware, masks
from launcher.binding.hardware import Node
from launcher.binding.masks import Binding, BindingRefused, DeviceError, RankDevices
from launcher.config.schema import Backend, Device, LaunchMode
from launcher.errors import is_transient
from launcher.failures import messages
from launcher.failures.codes import FaultCode, PreflightThen, Unbound
from launcher.plan.plan import NIC, JobPlan
from launcher.rendezvous import store
from launcher.rendezvous.rounds import LeaderLost, Member, Placement, Rendezvous, RendezvousError, placements
from launcher.runs import directory, event_files, history
from launcher.runs import events as kinds
from launcher.runs.directory import Events, current_attempt
from launcher.runs.events import Accused, Bound, Fault, Finished, Met, Place, Resized, last
from launcher.schedulers import topology
from launcher.worker import debugger, devices, hang_diagnosis, shared_with_agent
from launcher.worker.devices import OWN_CORES, torch_build
from launcher.worker.hang_diagnosis import Recorders
from launcher.worker.heartbeat import Pulse
from launcher.worker.main import AGENTS_OWN, fresh_command, ignored_signals, run_rank

BASE_FILES = 64  # open files of an agent without ranks, with some to spare
FILES_PER_RANK = 4  # of a rank's agent: its output, its errors, its report, its stacks


def open_files_needed(ranks: int, agents: int, world_size: int) -> int:
    """Returns how many open files an agent or its store's process needs; agents, world_size: 0 if it cannot lead."""
    return BASE_FILES + max(FILES_PER_RANK * ranks + agents, store.FILES_PER_RANK * world_size)


def places_of(plan: JobPlan, place: topology.Topology) -> list[Place]:
    """Returns the host and node of each agent of the job, by member index."""
    if plan.launch.mode != LaunchMode.tasks.value:
        return [Place(host=host, node=node) for node, host in enumerate(place.hosts)]
    nodes = [task // plan.procs_per_node for task in range(place.world_size)]
    return [Place(host=place.hosts[node], node=node, task=task) for task, node in enumerate(nodes)]


def set_network(plan: JobPlan, host: str, events: Events) -> None:
    """Sets gloo's and NCCL's interface to cluster.interface."""
    if plan.cluster.interface:
        known = [name for _, name in socket.if_nameindex()]
        if missing := [name for name in plan.cluster.interface.split(",") if name not in known]:
            problem = f"no network interface {', '.join(missing)} (cluster.interface); there are {', '.join(known)}"
            fault = Fault(code=FaultCode.REFUSED, host=host, error=problem, ends_with=errors.NO_RETRY)
            events(fault)
            raise AttemptFailed(fault, errors.NO_RETRY, decides=plan.min_nodes == plan.nodes)
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, plan.cluster.interface)


def run(run_dir: str) -> dict[str, Any]:
    """Runs this node's part of the attempt; returns the metrics of this agent's first rank; raises AttemptFailed."""
    attempt, here = current_attempt(), socket.gethostname()
    if attempt is None:
        fault = Fault(host=here, error=f"{run_dir}: not started by a job script of the launcher")
        raise AttemptFailed(fault, errors.NO_RETRY)
    signals = Signals()
    signals.install()  # submitit has just installed its own
    processes.adopt()
    try:
        plan = attempt.run.plan()
        place = topology.derive(os.environ, here, lambda path: Path(path).read_text())
    except errors.UnavailableError:
        raise  # the caller reports it, and the run is resumed
    except (errors.RunError, topology.TopologyError) as error:
        code = FaultCode.UNREADABLE if isinstance(error, errors.RunError) else FaultCode.REFUSED
        raise AttemptFailed(Fault(code=code, host=here, error=str(error)), errors.NO_RETRY) from None
    events, host = Events(attempt, f"node-{place.rank}"), place.hosts[place.node_rank]
    try:
        if not _can_enter(plan.workdir):
            fault = Fault(code=FaultCode.NO_FOLDER, host=host, error=plan.no_workdir, ends_with=errors.NO_RETRY)
            events(fault)
            raise AttemptFailed(fault, errors.NO_RETRY, decides=plan.min_nodes == plan.nodes)
        set_network(plan, host, events)
        _require_open_files(plan, place, events)
        return _Agent(plan, attempt, place, events, signals).run()
    except AttemptOver as over:
        print(f"launcher: {host} waited to join, and is not needed any more: {over}", file=sys.stderr)
        return {}
    except RendezvousError as error:
        events(error.fault)
        ends_with = error.fault.ends_with or errors.FAILED
        raise AttemptFailed(error.fault, ends_with, ours=not error.from_leader, decides=place.rank == 0) from None
    except AskedToStop as request:
        fault = _stopped_early(host, request, "before its ranks had started")
        events(fault)
        raise AttemptFailed(fault, errors.RESUME) from None  # nothing is lost
    except (errors.RunError, OSError, Overtaken, LeaderLost, NobodyLeads) as error:
        failed = failed_by(error, host)
        events(failed.event)
        raise failed from None


def fault_of_start(error: StartError, host: str) -> Fault:
    most_processes, most_files = ("unlimited" if each < 0 else str(each) for each in (error.processes, error.files))
    fix = {
        errno.EAGAIN: f"no more processes are allowed here: raise `ulimit -u` (now {most_processes}) or the job's pids "
                      "limit, or have fewer ranks (procs_per_node) and data loader workers",
        errno.ENOMEM: "there is no memory for one more process: ask for more, or have fewer ranks (procs_per_node)",
        errno.EMFILE: f"the agent may open no more files: raise `ulimit -n` (now {most_files}), for instance in "
                      "cluster.setup",
        errno.ENFILE: "the node has no more files to open (sysctl fs.file-max): other processes on it hold them",
    }.get(error.number)  # fmt: skip
    message = f"{messages.rank_on(error.rank, host)} cannot be started: {error.message}" + (f"; {fix}" if fix else "")
    return Fault(code=FaultCode.NOT_STARTED, rank=error.rank, host=host, error=error.message, message=message)


def failed_by(error: Exception, host: str) -> AttemptFailed:
    """Returns how the attempt ends after an error that stops an agent.

    If it is transient, or the leader was lost, it can be resumed; a damaged run directory would make it fail again.
    """
    lost = isinstance(error, (LeaderLost, Overtaken, NobodyLeads))
    unreadable = isinstance(error, errors.RunError)
    exit_code = errors.NO_RETRY if unreadable else errors.FAILED
    if is_transient(error) or lost:
        exit_code = errors.RESUME
    code = FaultCode.UNREADABLE if unreadable else FaultCode.LEADER_LOST if lost else FaultCode.AGENT
    fault = Fault(code=code, host=host, error=str(error), ends_with=exit_code)
    return AttemptFailed(fault, exit_code, decides=not isinstance(error, NobodyLeads))


def _stopped_early(host: str, request: AskedToStop, when: str) -> Fault:
    name = request.number.name
    return Fault(
        code=FaultCode.STOPPED_EARLY, host=host, signal=name, message=f"{messages.of_request(host, name)} {when}"
    )


def _require_open_files(plan: JobPlan, place: topology.Topology, events: Events) -> None:
    leads = place.rank == 0 or plan.min_nodes < plan.nodes
    nodes = len(place.hosts) if leads else 0
    ranks = plan.procs_per_node // plan.tasks_per_node
    needed = open_files_needed(ranks, nodes * plan.tasks_per_node, nodes * plan.procs_per_node)
    maximum = processes.raise_limit()
    if needed > maximum >= 0:
        host, node = place.hosts[place.node_rank], place.node_rank
        message = (
            f"{messages.node_of(host, node)} allows a process too few open files for these ranks (`ulimit -Hn`: "
            f"{maximum}, and its agent needs {needed}): have the limit raised (for Slurm: LimitNOFILE of slurmd), or "
            "have fewer ranks"
        )
        fault = Fault(code=FaultCode.OPEN_FILES, host=host, node=node, message=message, ends_with=errors.NO_RETRY)
        events(fault)
        raise AttemptFailed(fault, errors.NO_RETRY, decides=True)


def _can_enter(folder: str) -> bool:
    # Slurm does not fail if it cannot: it starts the task in /tmp, and only logs that
    try:
        return bool(os.stat(f"{folder}/."))
    except OSError as error:
        if is_transient(error):
            raise
        return False


class _Agent:
    # Of one node, or of one rank

    def __init__(
        self, plan: JobPlan, attempt: directory.Attempt, place: topology.Topology, events: Events, signals: Signals
    ) -> None:
        self._plan, self._attempt, self._events, self._signals = plan, attempt, events, signals
        self._source = place.source
        per_task = plan.launch.mode == LaunchMode.tasks.value
        self.own = Member(
            place.rank, place.node_rank, place.hosts[place.node_rank],
            ranks=1 if per_task else plan.procs_per_node, first_local_rank=place.local_rank,
        )  # fmt: skip
        self._places = places_of(plan, place)
        self._connection = LeaderConnection(
            self.own, plan=plan, attempt=attempt, places=self._places,
            hosts=[each.host + plan.cluster.host_suffix for each in self._places],
            secret=attempt.run.secret(), key=f"{plan.run_id}/{attempt.number}/{place.job}", signals=signals,
        )  # fmt: skip
        stacks = hang_diagnosis.Stacks(self.own.ranks)
        memory = shared_with_agent.make_memory() if plan.checkpoint.memory != 0 else -1
        self._context = AgentContext(
            plan, attempt, events, signals, Pulse(self.own.ranks), memory, stacks, RequestHandler(attempt, stacks)
        )
        if plan.own_code and plan.gpus_per_node and plan.workload.device != Device.cpu.value:
            self._context.gpus = GpuWatch(self.own.host, plan.gpus_per_node, events)
        self._workers = WorkerGroup(attempt.logs, fresh=self._fresh)
        self._binder = Binder(plan, os.environ)
        self._folder: Path | None = None  # of the flight recorders
        if plan.gpus_per_node and plan.workload.backend in (Backend.auto.value, Backend.nccl.value):
            self._folder = debugger.private_folder()
            renamed = hasattr(torch._C._distributed_c10d, "_dump_fr_trace")
            self._context.recorders = Recorders(self._folder, os.environ, renamed=renamed)
            os.environ.update(self._context.recorders.variables)
        self._began, self._members = 0.0, 0  # when the round began, and with how many agents
        self._lives = 0  # how often this attempt has started ranks before this round; rounds of a preflight start none

    def run(self) -> dict[str, Any]:
        failed = False
        try:
            return self._run()
        except AttemptFailed as failure:
            event, retried = failure.event, failure.exit_code == errors.RESUME
            failed = retried and isinstance(event, Fault) and event.code is not FaultCode.STOPPED_EARLY
            raise
        finally:
            leads = self._connection.leads
            self._signals.ignore()
            self._connection.close()
            if leads:
                self._count_round(failed)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> dict[str, Any]:
        # Before the rendezvous, since an agent sends no heartbeats during imports.
        preload(self._plan.workload.entry, self._plan)
        history, rendezvous = self._connection.first(preflight=self._plan.preflight)
        if rendezvous.place_of(self.own.index) == 0:
            self._count_death()
        while True:
            if history.preflight and (found := self._preflight(history, rendezvous)):
                if self.own.index in found.lost:  # the other nodes continue without this one
                    self._connection.left_out = True
                    return {}
                history, rendezvous = self._next(found, rendezvous)
                continue
            self._events(Met(
                port=rendezvous.port, members=len(rendezvous.members), ranks=rendezvous.world_size,
                interface=rendezvous.interface, source=self._source, host=self.own.host, torch=torch.__version__,
                round=history.round,
            ))  # fmt: skip
            self._began, self._members = time.time(), len(rendezvous.members)
            try:
                outcome = self._round(history, rendezvous)
            except AttemptFailed as failed:
                if not self._continued_by_others(history.round + 1, wait=failed.suspended is not None):
                    if failed.suspended is not None and failed.ours:
                        self._events(failed.suspended)
                    raise
                history, rendezvous = self._connection.join()  # the others have continued without this agent
                continue
            if isinstance(outcome, Done):
                break
            history, rendezvous = self._next(outcome, replace(rendezvous, spares=outcome.spares))
            if rendezvous.place_of(self.own.index) == 0:
                self._count_round(not outcome.planned)
        self._events(Finished())
        if rendezvous.place_of(self.own.index) == 0:
            self._attempt.write_exit_code(errors.DONE)
        return outcome.metrics

    # -- how often runs fail: the interval between saves follows from it

    def _count_round(self, failed: bool) -> None:
        # When it ends: the next one wants to know, and the job may die
        seen: list[dict[str, Any]] = []
        with contextlib.suppress(errors.RunError, OSError):
            seen += self._attempt.written_by("restored", retry_seconds=0)
        self._count(failed, self._members, self._began, time.time(), seen)

    def _count_death(self) -> None:
        # Of the whole job of the attempt before: nobody was left to count it. The others wait for this agent's
        # heartbeats, and a job may have thousands of event files: a few are read, once
        file = directory.Attempt(self._attempt.run, self._attempt.number - 1).events_file
        with contextlib.suppress(errors.RunError, OSError):
            seen = [
                event for writer in ("script", "spawn", "stop", "node-0", "restored")
                for event in event_files.read(file(writer), retry_seconds=0, without=Bound)
            ]  # fmt: skip
            met = last(seen, Met)
            # A job that was preempted or cancelled is killed soon, maybe before its end is recorded
            if met is not None and not any(last(seen, kind) for kind in (kinds.Ended, kinds.Stop, kinds.StopRequested)):
                steps = event_files.first_and_last(file("rank-0"), retry_seconds=0)
                self._count(True, met.members, met.time, max(each["time"] for each in (*seen, *steps)), seen)

    def _count(self, failed: bool, agents: int, began: float, ended: float, seen: Sequence[dict[str, Any]]) -> None:
        # seen: what the attempt's rounds have continued from
        restored = last(seen, kinds.Restored)
        absorbed = restored is not None and restored.memory and restored.time >= began
        history.add_failures(
            self._attempt.run.path, self._plan.cluster.name, int(failed),
            agents * (ended - began) / self._plan.tasks_per_node, absorbed=int(absorbed),
        )  # fmt: skip

    def _continued_by_others(self, number: int, *, wait: bool) -> bool:
        if not self._connection.elastic:
            return False
        try:
            return self._connection.others_begin(number) if wait else self._connection.begun(number)
        except (RendezvousError, AskedToStop):  # it cannot be known, or there is no time
            return False

    def _round(self, history: History, rendezvous: Rendezvous) -> Done | NextRound:
        plan, context = self._plan, self._context
        place = rendezvous.place_of(self.own.index)
        assert place is not None
        context.pulse.clear(rendezvous.world_size)
        context.stacks.clear()
        os.environ[shared_with_agent.REACHED] = str(history.best)
        sockets = debugger.private_folder() if plan.debugs else None
        if sockets is not None:
            os.environ[debugger.SOCKETS] = str(sockets)
        ranks = placements(
            rendezvous.members, place, master=(rendezvous.host, rendezvous.port), run_id=plan.run_id,
            interface=rendezvous.interface, round_number=history.round, max_restarts=plan.launch.max_restarts,
            environ=os.environ,
        )  # fmt: skip
        try:
            ranks, bound = self._binder.bind(rendezvous.members, place, ranks)
        except BindingRefused as error:
            fault = Fault(code=FaultCode.REFUSED, error=str(error), ends_with=error.exit_code)
            raise self._cannot_start(rendezvous, fault) from None
        self._events(bound)
        own = {name: value for name, value in os.environ.items() if name not in AGENTS_OWN}
        context.environments = [
            {**seen, **devices.variables(plan, seen)} for seen in ({**own, **rank.environment} for rank in ranks)
        ]
        with contextlib.ExitStack() as opened:
            if sockets is not None:
                opened.callback(shutil.rmtree, sockets, ignore_errors=True)
            opened.callback(self._workers.close)
            self._lives = history.round if history.listened else 0
            served: store.RanksStore | None = None
            if rendezvous.listener is not None:  # its process begins while the ranks are forked, which want it first
                served = self._serve(rendezvous, rendezvous.listener)
                opened.callback(served.close)
            self._start(rendezvous, ranks)
            self._workers.open_gate()
            return Supervisor(context, self._connection, self._workers, rendezvous, place, history, served).run()

    def _files(self, placement: Placement) -> dict[str, int]:
        context = self._context
        return {
            "pulse_file": context.pulse.share(), "stacks_file": context.stacks.file(placement.place),
            "memory_file": context.memory,
        }  # fmt: skip

    def _fresh(self, placement: Placement) -> Fresh:
        files = self._files(placement)
        descriptors = [each for each in files.values() if each >= 0]
        return Fresh(fresh_command(placement.place, **files, lives=self._lives), descriptors)

    def _start(self, rendezvous: Rendezvous, ranks: Sequence[Placement]) -> None:
        # They wait at the gate of `WorkerGroup`
        def run(placement: Placement) -> dict[str, Any]:
            return run_rank(self._plan, placement.place, **self._files(placement), lives=self._lives)

        if left := self._workers.still_there():
            raise self._cannot_start(rendezvous, fault_of_end(left, self.own.host))
        try:
            self._workers.start(
                ranks, run, round_number=int(ranks[0].environment["LAUNCHER_ROUND"]),
                close_in_child=self._connection.descriptors(), ignore=ignored_signals(self._lives),
            )  # fmt: skip
        except StartError as error:
            raise self._cannot_start(rendezvous, fault_of_start(error, self.own.host)) from None

    def _serve(self, rendezvous: Rendezvous, listener: socket.socket) -> store.RanksStore:
        try:
            served = store.RanksStore(listener, rendezvous.addresses, at_once=rendezvous.world_size > 1)
        except OSError as error:
            fault = Fault(code=FaultCode.AGENT, error=f"the ranks' store cannot be served: {error}")
            raise self._cannot_start(rendezvous, fault) from None
        self._workers.spared.add(served.pid)
        return served

    def _cannot_start(self, rendezvous: Rendezvous, fault: Fault) -> AttemptFailed:
        own, leader = self.own, rendezvous.members[0]
        code = fault.ends_with or errors.RESUME
        kind = RoundEnd.NO_RETRY if code == errors.NO_RETRY else RoundEnd.LOST_NODE
        fault = replace(fault, host=own.host, node=own.node_rank, accused=(Accused(host=own.host),))
        failure = RoundFailure(kind, fault, leader.index, listens=True, lost=(own.index,))
        self._connection.send(failure.message())
        coordinator = self._connection.coordinator
        if coordinator is None:  # the leader writes the event, and decides the attempt's exit code
            return AttemptFailed(fault, code, ours=False, decides=not self._connection.elastic)
        self._events(fault)
        continues = coordinator.verdict is not None and coordinator.verdict.restarts
        return AttemptFailed(fault, code, decides=not continues)

    def _next(self, outcome: NextRound, before: Rendezvous) -> tuple[History, Rendezvous]:
        history = outcome.history
        try:
            if self.own.index not in outcome.lost:
                history, rendezvous = self._connection.next(history, before, outcome.lost)
                if rendezvous.place_of(self.own.index) == 0:
                    self._report_changes(history.round, before, rendezvous)
                return history, rendezvous
        except Overtaken:
            pass
        except RendezvousError as error:
            if history.preflight:  # the run has not started: other nodes are needed
                raise
            enough = len(before.members) + len(before.spares) - 1 >= self._plan.least_agents  # without this agent
            if enough and self._continued_by_others(history.round, wait=True):
                return self._connection.join()
            if ours := not error.from_leader:
                self._events(error.fault)
            raise AttemptFailed(error.fault, errors.RESUME, ours=ours, decides=ours) from None
        except AskedToStop as request:
            if history.preflight:
                raise
            fault = _stopped_early(self.own.host, request, "between two rounds")
            self._events(fault)
            goes_on = self._connection.elastic and self._connection.follows  # with the others
            raise AttemptFailed(fault, errors.RESUME, decides=not goes_on) from None
        return self._connection.join()

    def _preflight(self, history: History, rendezvous: Rendezvous) -> NextRound | None:
        # None: all nodes have passed
        verdict = Preflight(
            self._plan, self._attempt, self._events, self._connection, rendezvous, round_number=history.round
        ).run()
        if verdict.then is PreflightThen.GO:
            return None
        leads = rendezvous.place_of(self.own.index) == 0
        if verdict.then is PreflightThen.FAIL:
            hosts = dict.fromkeys(member.host for member in rendezvous.members if member.index in verdict.lost)
            fault = Fault(
                code=FaultCode.PREFLIGHT, host=self.own.host, message=verdict.failure,
                accused=tuple(map(Accused, hosts)), ends_with=verdict.exit_code,
            )  # fmt: skip
            if leads:
                self._events(fault)
            raise AttemptFailed(fault, verdict.exit_code, ours=leads, decides=leads)
        return NextRound(replace(history, round=history.round + 1), verdict.lost)

    def _report_changes(self, number: int, before: Rendezvous, now: Rendezvous) -> None:
        old, new = ({member.index: member for member in rendezvous.members} for rendezvous in (before, now))

        def places(some: Mapping[int, Member], others: Mapping[int, Member]) -> tuple[Place, ...]:
            # The hosts that they reported: a scheduler may have spread its tasks in another order
            left = [some[index] for index in sorted(some.keys() - others.keys())]
            return tuple(replace(self._places[each.index], host=each.host, node=each.node_rank) for each in left)

        if old.keys() != new.keys():
            self._context.report_resized(Resized(
                round=number, members=len(new), world_size=now.world_size, size=len(self._places),
                without=places(old, new), back=places(new, old), spares=len(now.spares),
            ))  # fmt: skip


# -- Chooses the CPU cores of one agent's ranks, from the node's hardware, the plan and the agents of the round. Each
# rank gets its CPU mask right after the fork; by the kernel's default policy its memory is then local to these cores


THREADS = "OMP_NUM_THREADS"

Look = Callable[[], "tuple[Node, Set[int]]"]  # returns the node's hardware, and the ids of the job's CPUs there


class Binder:
    """Chooses the cores of one agent's ranks in each round. The node's hardware is read only once."""

    def __init__(self, plan: JobPlan, environ: Mapping[str, str], look: Look | None = None) -> None:
        self._plan, self._environ = plan, dict(environ)
        self._wanted = masks.parse(plan.launch.bind)
        self._look = look or (lambda: (hardware.read(environ=self._environ), os.sched_getaffinity(0)))
        self._seen: tuple[Node, Set[int]] | None = None

    def bind(
        self, agents: Sequence[Member], position: int, ranks: Sequence[Placement]
    ) -> tuple[list[Placement], Bound]:
        """Returns the agent's ranks with their CPUs and variables, and the event of it; raises BindingRefused."""
        if self._seen is None:
            self._seen = self._look()
        node, allowed = self._seen
        before, found = self._binding(node, allowed, agents, position)
        mine = found.ranks[before : before + len(ranks)]
        placed = [
            replace(
                rank, cpus=bound.cpus if found.bound else (),
                environment={**rank.environment, **self._variables(rank, bound, is_bound=found.bound)},
            )
            for rank, bound in zip(ranks, mine, strict=True)
        ]  # fmt: skip
        event = history.bindings_event(
            agents[position].host, node, allowed, mine, first_rank=ranks[0].rank, unbound=found.unbound,
            round_number=int(ranks[0].environment["LAUNCHER_ROUND"]),
        )  # fmt: skip
        return placed, event

    def _binding(self, node: Node, allowed: Set[int], agents: Sequence[Member], position: int) -> tuple[int, Binding]:
        # The binding covers the ranks of all agents of this host, since simulated nodes share the cores of one machine.
        # With launch=tasks it covers only this agent's rank, which has its own CPUs from the scheduler.
        own, tasks = agents[position], self._plan.launch.mode == LaunchMode.tasks.value
        if tasks and self._wanted.kind == masks.AUTO:
            why = Unbound("launch=tasks: the scheduler has bound each rank")
            return 0, masks.unbound(node, allowed, [RankDevices()], why)
        alone = tasks or self._wanted.kind == masks.MAP
        on_this_host = [agent for agent in agents if agent.host == own.host and (agent is own or not alone)]
        before = sum(agent.ranks for agent in on_this_host[: [agent is own for agent in on_this_host].index(True)])
        try:
            here = [each for agent in on_this_host for each in self._near(node, agent, tasks)]
        except DeviceError as error:
            count = sum(agent.ranks for agent in on_this_host)
            return before, masks.unbound(node, allowed, [RankDevices()] * count, Unbound(str(error)))
        lists = self._wanted
        if tasks and lists.kind == masks.MAP:
            lists = masks.BindRequest(masks.MAP, lists.lists[own.first_local_rank :])
        return before, masks.bind(node, allowed, here, lists, cpus_per_rank=self._plan.cpus_per_proc)

    def _near(self, node: Node, agent: Member, tasks: bool) -> list[RankDevices]:
        plan = self._plan
        first = agent.first_local_rank if tasks else 0
        asked = plan.gpus_per_node
        gpus = plan.workload.device != Device.cpu.value and bool(
            asked or (torch_build() and masks.visible_gpus(node, self._environ))
        )
        ranks = range(first, first + agent.ranks)
        return masks.of_ranks(node, self._environ, ranks, gpus=gpus, most=asked or None, pairs=plan.cluster.nics)

    def _variables(self, rank: Placement, binding: masks.RankBinding, *, is_bound: bool) -> dict[str, str]:
        plan = self._plan
        found = {OWN_CORES: str(binding.own), **omp_threads(self._environ, plan, binding.own)} if is_bound else {}
        local_rank = int(rank.environment["LOCAL_RANK"])
        nic = binding.devices.paired or (
            plan.cluster.nics[local_rank % len(plan.cluster.nics)] if plan.cluster.nics else ""
        )
        return found | {name: value.replace(NIC, nic) for name, value in plan.cluster.rank_environment.items()}


def omp_threads(environ: Mapping[str, str], plan: JobPlan, cores: int) -> dict[str, str]:
    """Returns the variable OMP_NUM_THREADS of a bound rank, or nothing if it keeps the agent's value.

    | OMP_NUM_THREADS of the agent | OMP_NUM_THREADS of the rank |
    |---|---|
    | any, if train.invariant | the same: the order of sums depends on it |
    | unset | the number of cores of the rank |
    | cpus_per_proc, as the job script sets it, and more than the rank's cores | the number of cores of the rank |
    | any other | the same: the user has set it |
    """
    given = environ.get(THREADS)
    ours = not given or (given == str(plan.cpus_per_proc) and int(given) > cores)
    return {THREADS: str(cores)} if ours and not plan.train.invariant else {}
