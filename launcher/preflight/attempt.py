"""The checks of all nodes before the first round of ranks: runs them, and decides which nodes are bad."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from launcher import errors
from launcher.failures.codes import CheckCode, PreflightReason, PreflightThen
from launcher.failures.text import signal_name
from launcher.files.json_types import from_json
from launcher.formatting import log_line
from launcher.preflight import checks as processes
from launcher.preflight.checks import CheckLevel, NodeCheck
from launcher.rendezvous import store
from launcher.rendezvous.protocol import free_ports, listen
from launcher.rendezvous.rounds import LeaderLost, Member, Rendezvous, address_reached
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import CheckEnded, NodeChecked, NodeFinding, Observation, Preflighted, PreflightFailure
from launcher.runs.health import preflight_lines
from launcher.schedulers import registry
from launcher.spec.plan import JobPlan


@dataclass(frozen=True)
class CheckedNode:
    """A node that takes part in a preflight."""

    name: str  # name of the node in messages
    host: str  # host name
    members: tuple[int, ...]  # indices of the node's agents
    ranks: tuple[int, ...]  # global ranks on the node


@dataclass(frozen=True)
class PreflightVerdict:
    """The leader's decision, which all agents follow."""

    then: PreflightThen  # whether the run starts, starts without the bad nodes, or fails
    bad: tuple[NodeFinding, ...] = ()  # each bad node, with what is wrong there
    lost: tuple[int, ...] = ()  # indices of the bad nodes' agents
    warnings: tuple[NodeFinding, ...] = ()  # nodes with something that may become a problem
    failure: PreflightFailure | None = None  # why the attempt fails; None: it does not fail
    exit_code: int = errors.FAILED  # exit code of the attempt if it fails


SILENT, LEADER = "silent", "leader"  # in place of a check's name: no report in time; connection to the leader lost
SETTINGS = {"device", "space", "run_dir", "fabric"}  # checks that fail on all nodes if a config key is wrong
MOST_FINDINGS = 4  # largest number of problems in a PreflightFailure
Reports = Mapping[int, Sequence[NodeCheck] | None]  # checks by index of the agent; None: it did not report in time


def decide(
    nodes: Sequence[CheckedNode],
    reports: Reports,
    *,
    least: int,
    scheduler: str,
    settings: Mapping[str, Any],
    timeout: float,
) -> PreflightVerdict:
    """Returns the leader's decision. The first row that applies decides.

    | the checks | decision |
    |---|---|
    | no check failed | go |
    | some nodes are bad, and enough are left | start without them |
    | all of several nodes are bad, by the same check of SETTINGS | fail (93): other nodes would fail too |
    | some nodes are bad, and too few are left | fail (1): the run can be resumed on other nodes |
    | ranks fail together, and the bad node is unknown | fail (1) |
    """
    checks_of = {node: [check for index in node.members for check in reports.get(index) or ()] for node in nodes}
    warnings = tuple(
        dict.fromkeys(
            _finding(node, check) for node in nodes for check in checks_of[node] if check.level is CheckLevel.WARNING
        )
    )
    failed = {node: [each for each in checks if each.level is CheckLevel.FAILED] for node, checks in checks_of.items()}
    found = blame(nodes, failed, {node for node in nodes if any(reports.get(each) is None for each in node.members)})
    if not found:
        symptoms = tuple(_finding(node, checks[0]) for node, checks in failed.items() if checks)
        if not symptoms:
            return PreflightVerdict(PreflightThen.GO, warnings=warnings)
        failure = PreflightFailure(
            reason=PreflightReason.UNKNOWN_NODE, nodes=len(nodes), failed=len(symptoms), findings=symptoms[:1]
        )
        return PreflightVerdict(PreflightThen.FAIL, warnings=warnings, failure=failure)
    silent = Observation(code=CheckCode.SILENT, seconds=timeout)
    bad = tuple(
        NodeFinding(node.name, node.host, SILENT, silent) if check is None else _finding(node, check)
        for node, check in found.items()
    )
    lost = tuple(index for node in found for index in node.members)
    if sum(len(node.members) for node in nodes) - len(lost) >= max(least, 1):
        return PreflightVerdict(PreflightThen.WITHOUT, bad, lost, warnings)
    names = {each.check for each in bad}
    if len(found) == len(nodes) > 1 and len(names) == 1:
        failure = PreflightFailure(
            reason=PreflightReason.ALL_NODES, nodes=len(nodes), failed=len(nodes), findings=bad[:1]
        )
        code = errors.NO_RETRY if names <= SETTINGS else errors.FAILED
        return PreflightVerdict(PreflightThen.FAIL, bad, lost, warnings, failure, code)
    hosts = ",".join({each.host: None for each in bad})
    failure = PreflightFailure(
        reason=PreflightReason.TOO_FEW, nodes=len(nodes), failed=len(bad), findings=bad[:MOST_FINDINGS],
        exclude=registry.scheduler(scheduler).without(hosts, settings) if len(nodes) > 1 else "",
    )  # fmt: skip
    return PreflightVerdict(PreflightThen.FAIL, bad, lost, warnings, failure)


def _finding(node: CheckedNode, check: NodeCheck) -> NodeFinding:
    return NodeFinding(node.name, node.host, check.name, check.found)


def blame(
    nodes: Sequence[CheckedNode], failed: Mapping[CheckedNode, Sequence[NodeCheck]], silent: Collection[CheckedNode]
) -> dict[CheckedNode, NodeCheck | None]:
    """Returns the bad nodes, each with the check that shows it; None: the node reported nothing.

    The first row that applies decides:

    | what nodes report | the bad nodes |
    |---|---|
    | nothing, or an error of their own | these nodes: they may cause the errors of the others |
    | wrong elements of an all_reduce, on most nodes from the same node | the node that they are from |
    | other wrong elements of an all_reduce | the nodes that received them |
    | other nodes that they cannot reach, or whose files they do not see | each node that misses more than half of the
      nodes that it tried, unless most nodes do; and each node that one of the remaining nodes misses |

    A node whose ranks only lost other ranks, or waited for them in vain, is not bad.

    silent: nodes with an agent that did not report in time.
    """
    found: dict[CheckedNode, NodeCheck | None] = {node: None for node in nodes if node in silent}
    for node in nodes:
        if own := [check for check in failed[node] if not check.symptom and not check.accused]:
            found[node] = own[0]
    if found:
        return {node: found[node] for node in nodes if node in found}
    accusing = {node: next((check for check in failed[node] if check.accused), None) for node in nodes}
    return _accused(nodes, {node: check for node, check in accusing.items() if check is not None})


def _accused(
    nodes: Sequence[CheckedNode], accusing: Mapping[CheckedNode, NodeCheck]
) -> dict[CheckedNode, NodeCheck | None]:
    if not accusing:
        return {}
    most = len(nodes) / 2
    if next(iter(accusing.values())).name == "all_reduce":
        votes = {node: [each for each in accusing.values() if {*each.accused} & {*node.ranks}] for node in nodes}
        return {node: checks[0] for node, checks in votes.items() if len(checks) > most} or dict(accusing)
    blind = {node: check for node, check in accusing.items() if 2 * len(check.accused) > check.looked}
    if len(blind) > most:  # then the nodes that they do not see are bad
        blind = {}
    seers = [check for node, check in accusing.items() if node not in blind]
    unseen = {node: [each for each in seers if {*each.accused} & {*node.members}] for node in nodes}
    return {**blind, **{node: checks[0] for node, checks in unseen.items() if checks and node not in blind}}


# -- Runs the preflight of an attempt (`preflight=true`): checks of a few seconds on every node before the ranks start
#
# The agents have a rendezvous already. Each agent forks one process per future rank to make the checks, and sends the
# results to the leader, the agent that decides for all (`bad_nodes.decide`). There are two parts:
#
# 1. the checks that a node makes alone: its devices, free space, whether the run directory is shared;
# 2. the checks that need all nodes: clocks, and an all_reduce with a known result.
#
# Nothing here can hang an agent: a process that does not report in time is killed, and a node with an agent that does
# not report in time is bad.


ALONE = 40.0  # timeout of the first part, in seconds: a driver may take long to wake up eight GPUs
TOGETHER = 50.0  # timeout of the second part, in seconds
PER_RANK = 0.02  # seconds added to TOGETHER for each rank
LOOK = 0.2  # seconds between heartbeats to the other agents during a part
SLACK = 5.0  # timeout of a message between agents, in seconds

_context = multiprocessing.get_context("fork")


class Agents(Protocol):
    """The connection to the other agents while no ranks run; see `launcher.agent.control.Control`."""

    own: Member

    def names(self, indices: Iterable[int]) -> str:
        """Returns the names of these agents for messages."""

    def collect(self, key: str, value: Any, timeout: float) -> dict[int, Any]:
        """On the leader: returns the values that agents report for `key` within `timeout` seconds, by agent index.
        `value` is the leader's own."""

    def publish(self, key: str, value: Any) -> None:
        """On the leader: sends a value to all other agents, which wait for it in `answer` with the same `key`."""

    def answer(self, key: str, timeout: float) -> Any:
        """On the other agents: waits `timeout` seconds for the leader's value for `key`; raises LeaderLost."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to the leader."""

    def keep_alive(self) -> None:
        """Sends and receives heartbeats."""


class Preflight:
    """A preflight, as one agent runs it."""

    def __init__(
        self, plan: JobPlan, attempt: directory.Attempt, events: Events, agents: Agents, rendezvous: Rendezvous, *,
        round_number: int,
    ) -> None:  # fmt: skip
        # rendezvous: of all agents that take part; the first is the leader
        self._plan, self._attempt, self._events, self._agents = plan, attempt, events, agents
        self._rendezvous, self._round = rendezvous, round_number
        place = rendezvous.place_of(agents.own.index)
        assert place is not None
        self._place, self._own = place, rendezvous.members[place]
        self._least = plan.min_nodes * plan.tasks_per_node
        self._nodes = nodes_of(rendezvous.members, agents.names)
        self._children: list[tuple[Any, Connection]] = []
        self._store: store.RanksStore | None = None
        self._together = TOGETHER + PER_RANK * rendezvous.world_size

    def run(self) -> PreflightVerdict:
        """Runs both parts and returns the leader's decision, which is the same in every agent; no process is left.

        If the leader is lost, each remaining agent decides to start without the leader's node.
        """
        began = time.monotonic()
        found: list[NodeCheck] = []
        agreed = False
        try:
            self._fork()
            self._send("begin")
            mine = self._collect(ALONE, self._died_alone)
            found += mine or ()
            verdict = self._agree("alone", mine, ALONE)
            if verdict.then is PreflightThen.GO:
                self._send("go")
                mine = self._collect(self._together, self._died_together)
                found += mine or ()
                verdict = self._agree("together", mine, self._together, verdict.warnings)
            agreed = True
        except LeaderLost as error:
            verdict = self._without_leader(str(error))
        finally:
            self._end()
        self._report(verdict, found, time.monotonic() - began, first=self._place == (0 if agreed else 1))
        return verdict

    # -- processes

    def _fork(self) -> None:
        # The leader then forks that of their store, which has threads
        key = f"preflight/{self._round}/port"
        listener = None
        if self._place == 0:
            ports = free_ports(self._plan.cluster.port_range)
            listener = listen(ports, address_reached(self._rendezvous.members))
            port = listener.getsockname()[1]
            self._agents.publish(key, port)
        else:
            port = self._agents.answer(key, ALONE)
        rendezvous = replace(self._rendezvous, port=port, listener=None)
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = self._together - 4 * SLACK  # clocks are compared before the all_reduce; `reach` may run after it
        for place in range(self._own.ranks):
            ours, theirs = _context.Pipe()
            arguments = (self._plan, self._attempt.path, rendezvous, self._place, place, timeout, theirs)
            process = _context.Process(target=processes.check_rank, args=(*arguments, os.getpid()), daemon=True)
            process.start()
            theirs.close()  # so that this process sees when the child ends
            self._children.append((process, ours))
        if listener is not None:
            self._store = store.RanksStore(listener, self._rendezvous.addresses)

    def _send(self, word: str) -> None:
        for _, pipe in self._children:
            with contextlib.suppress(OSError):
                pipe.send(word)

    def _collect(self, timeout: float, died: Callable[[int], NodeCheck]) -> list[NodeCheck] | None:
        deadline, found = time.monotonic() + timeout, {}
        waiting = {pipe: place for place, (_, pipe) in enumerate(self._children)}
        while waiting and (left := deadline - time.monotonic()) > 0:
            self._agents.keep_alive()
            for pipe in multiprocessing.connection.wait([*waiting], min(left, LOOK)):
                assert isinstance(pipe, Connection)
                place = waiting.pop(pipe)
                try:
                    found[place] = pipe.recv()
                except (EOFError, OSError):
                    found[place] = [died(place)]
        return None if waiting else [each for place in sorted(found) for each in found[place]]

    def _died_alone(self, place: int) -> NodeCheck:
        return NodeCheck("device", CheckLevel.FAILED, self._ended(CheckCode.PROCESS_ENDED, place))

    def _died_together(self, place: int) -> NodeCheck:
        found = self._ended(CheckCode.RANK_ENDED, place)
        # NCCL aborts on a timeout
        return NodeCheck("all_reduce", CheckLevel.FAILED, found, symptom=found.signal == "SIGABRT")

    def _ended(self, code: CheckCode, place: int) -> Observation:
        process = self._children[place][0]
        process.join(1)
        exit_code: int | None = process.exitcode
        if exit_code is not None and exit_code < 0:
            return Observation(code=code, local_rank=place, signal=signal_name(-exit_code))
        return Observation(code=code, local_rank=place, exit_code=exit_code)

    def _end(self) -> None:
        self._send("end")
        for process, pipe in self._children:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join(1)  # a process in uninterruptible sleep stays; the agent continues
            pipe.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- agents

    def _agree(
        self, part: str, mine: list[NodeCheck] | None, timeout: float, warnings: tuple[NodeFinding, ...] = ()
    ) -> PreflightVerdict:
        key = f"preflight/{self._round}/{part}"
        value = None if mine is None else [asdict(each) for each in mine]
        if self._place == 0:
            reports = self._agents.collect(key, value, SLACK + (0.0 if mine is None else timeout))
            checks = {member.index: checks_of(reports.get(member.index)) for member in self._rendezvous.members}
            cluster = self._plan.cluster
            verdict = decide(
                self._nodes, checks, least=self._least, scheduler=cluster.scheduler, settings=cluster.settings,
                timeout=timeout,
            )  # fmt: skip
            self._agents.publish(key, asdict(verdict))
        else:
            self._agents.send({"type": "report", "key": key, "value": value})
            verdict = verdict_of(self._agents.answer(key, 2 * SLACK + timeout))
        kept = (*warnings, *verdict.warnings)
        return PreflightVerdict(verdict.then, verdict.bad, verdict.lost, kept, verdict.failure, verdict.exit_code)

    def _without_leader(self, error: str) -> PreflightVerdict:
        leader = self._rendezvous.members[0]
        node = next(node for node in self._nodes if leader.index in node.members)
        bad = (NodeFinding(node.name, node.host, LEADER, Observation(code=CheckCode.LEADER_LOST, error=error)),)
        return PreflightVerdict(PreflightThen.WITHOUT, bad, node.members)

    # -- reporting

    def _report(self, verdict: PreflightVerdict, found: Sequence[NodeCheck], seconds: float, *, first: bool) -> None:
        self._events(
            NodeChecked(
                round=self._round, host=self._own.host, node=self._own.node_rank,
                fine=self._own.index not in verdict.lost, seconds=round(seconds, 3),
                checks=tuple(CheckEnded(each.name, each.level.value, each.found, each.ms) for each in found),
            )
        )  # fmt: skip
        if not first:
            return
        event = Preflighted(
            round=self._round, then=verdict.then, nodes=len(self._nodes), bad=verdict.bad, warnings=verdict.warnings,
            seconds=round(seconds, 3),
        )  # fmt: skip
        self._events(event)
        if verdict.then is PreflightThen.FAIL:  # the cause of the failure names the bad nodes
            event = replace(event, bad=())
        for line in preflight_lines(event):
            log_line(line)


def nodes_of(members: Sequence[Member], name: Callable[[Sequence[int]], str]) -> list[CheckedNode]:
    """Returns the nodes of these agents, in their order, with the names that messages give to agents' indices."""
    nodes, first = [], 0
    ranks: dict[int, list[int]] = {}
    indices: dict[int, list[int]] = {}
    hosts: dict[int, str] = {}
    for member in members:
        ranks.setdefault(member.node_rank, []).extend(range(first, first + member.ranks))
        indices.setdefault(member.node_rank, []).append(member.index)
        hosts[member.node_rank] = member.host
        first += member.ranks
    for node, host in hosts.items():
        called = name(indices[node]) if len(indices[node]) == 1 else f"{host} (node {node})"
        nodes.append(CheckedNode(called, host, tuple(indices[node]), tuple(ranks[node])))
    return nodes


def verdict_of(values: Mapping[str, Any]) -> PreflightVerdict:
    """Returns the decision that the leader has sent as JSON."""
    verdict: PreflightVerdict = from_json(values, PreflightVerdict)
    return verdict


def checks_of(values: Sequence[Mapping[str, Any]] | None) -> list[NodeCheck] | None:
    """Returns the checks that an agent has sent as JSON; None: it has sent none."""
    return None if values is None else [from_json(each, NodeCheck) for each in values]
