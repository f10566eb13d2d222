"""The checks of all nodes before the first round of ranks: runs them, and decides which nodes are bad."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from launcher import errors, io_bounds
from launcher.agent.leader_connection import ENDS, WARNS, LeaderConnection
from launcher.agent.preflight_checks import ALONE_PART, TOGETHER_PART, CheckLevel, NodeCheck, cannot_start, check_rank
from launcher.agent.workers import StartError, WorkerExit, WorkerGroup
from launcher.failures.codes import PreflightThen
from launcher.failures.messages import end_of_process, node_of, of_preflight
from launcher.files.json_types import as_json, from_json
from launcher.formatting import log_line
from launcher.plan.plan import JobPlan
from launcher.rendezvous import store
from launcher.rendezvous.rounds import LeaderLost, Member, Rendezvous, placements
from launcher.runs import directory, events
from launcher.runs.directory import Events
from launcher.schedulers import registry


@dataclass(frozen=True)
class CheckedNode:
    name: str  # in messages
    host: str
    members: tuple[int, ...]  # indices of the node's agents
    ranks: tuple[int, ...]  # global ranks on the node


@dataclass(frozen=True)
class PreflightVerdict:
    then: PreflightThen  # whether the run starts, starts without the bad nodes, or fails
    bad: tuple[events.NodeFinding, ...] = ()  # bad nodes with what is wrong there, as many as an event has room for
    lost: tuple[int, ...] = ()  # indices of the bad nodes' agents
    warnings: tuple[events.NodeFinding, ...] = ()  # nodes with something that may become a problem
    failure: str = ""  # why the attempt fails, as text; empty: it does not fail
    exit_code: int = errors.FAILED  # exit code of the attempt if it fails


SILENT, LEADER = "silent", "leader"  # in place of a check's name: no report in time; connection to the leader lost
SETTINGS = {"device", "space", "run_dir", "fabric"}  # checks that fail on all nodes if a config key is wrong
MOST_FINDINGS = 4  # problems that the text about a failure names
FINDING = 100  # characters of a finding in JSON besides its texts
Reports = Mapping[int, Sequence[NodeCheck] | None]  # checks by index of the agent; None: it did not report in time


def decide(
    nodes: Sequence[CheckedNode], reports: Reports, *,
    least: int, spares: int = 0, scheduler: str, settings: Mapping[str, Any], timeout: float,
) -> PreflightVerdict:  # fmt: skip
    """Returns the leader's decision. The first row that applies decides.

    | the checks | decision |
    |---|---|
    | no check failed | go |
    | some nodes are bad, and enough are left | start without them |
    | all of several nodes are bad, by the same check of SETTINGS | fail (93): other nodes would fail too |
    | some nodes are bad, and too few are left | fail (1): the run can be resumed on other nodes |
    | ranks fail together, and the bad node is unknown | fail (1) |

    least: minimum number of agents in a round; spares: number of agents that can replace those of bad nodes.
    """
    checks_of = {node: [check for index in node.members for check in reports.get(index) or ()] for node in nodes}
    warned = [_finding(node, each) for node in nodes for each in checks_of[node] if each.level is CheckLevel.WARNING]
    warnings = _shown(tuple(dict.fromkeys(warned)))
    failed = {node: [each for each in checks if each.level is CheckLevel.FAILED] for node, checks in checks_of.items()}
    found = blame(nodes, failed, {node for node in nodes if any(reports.get(each) is None for each in node.members)})
    if not found:
        symptoms = tuple(_finding(node, checks[0]) for node, checks in failed.items() if checks)
        if not symptoms:
            return PreflightVerdict(PreflightThen.GO, warnings=warnings)
        lost_others = f"{len(symptoms)} of {len(nodes)} nodes lost the others, and the bad node is unknown"
        failure = f"preflight: {lost_others}: {symptoms[0].found.text}"
        return PreflightVerdict(PreflightThen.FAIL, warnings=warnings, failure=failure)
    text = f"reported nothing within {timeout:g} s: does a device or a file system hang there?"
    silent = NodeCheck(SILENT, CheckLevel.FAILED, text)
    bad = tuple(_finding(node, check or silent) for node, check in found.items())
    lost = tuple(index for node in found for index in node.members)
    shown = _shown(bad)
    left = sum(len(node.members) for node in nodes) - len(lost)
    if left and left + spares >= least:
        return PreflightVerdict(PreflightThen.WITHOUT, shown, lost, warnings)
    names = {each.check for each in bad}
    if len(found) == len(nodes) > 1 and len(names) == 1:
        failure = f"preflight: all {len(nodes)} nodes fail: {bad[0].found.text}"
        code = errors.NO_RETRY if names <= SETTINGS else errors.FAILED
        return PreflightVerdict(PreflightThen.FAIL, shown, lost, warnings, failure, code)
    failure = "preflight: " + "; ".join(f"{each.name}: {each.found.text}" for each in bad[:MOST_FINDINGS])
    failure += f"; and {len(bad) - MOST_FINDINGS} more" if len(bad) > MOST_FINDINGS else ""
    if len(nodes) > 1:
        exclude = registry.scheduler(scheduler).without(",".join({each.host: None for each in bad}), settings)
        spare = "spare nodes (min_nodes less than nodes)"
        others = f"Give the run {spare}, so that it starts without bad ones"
        failure += f". {f'Resume the run with {exclude}, or give it {spare}' if exclude else others}"
    return PreflightVerdict(PreflightThen.FAIL, shown, lost, warnings, failure)


def _shown(findings: Sequence[events.NodeFinding]) -> tuple[events.NodeFinding, ...]:
    # One, and as many as an event has room for, whatever their characters are in JSON
    found, room = list[events.NodeFinding](), io_bounds.EVENT_BYTES // 16
    for each in findings:
        room -= len(each.name) + len(each.host) + len(each.found.text) + FINDING
        if room < 0 and found:
            break
        found.append(each)
    return tuple(found)


def _finding(node: CheckedNode, check: NodeCheck) -> events.NodeFinding:
    return events.NodeFinding(node.name, node.host, check.name, events.Observation(check.found))


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
        votes = _accusers(nodes, lambda node: node.ranks, accusing.values())
        return {node: checks[0] for node, checks in votes.items() if len(checks) > most} or dict(accusing)
    blind = {node: check for node, check in accusing.items() if 2 * len(check.accused) > check.looked}
    if len(blind) > most:  # then the nodes that they do not see are bad
        blind = {}
    seers = [check for node, check in accusing.items() if node not in blind]
    unseen = _accusers(nodes, lambda node: node.members, seers)
    return {**blind, **{node: checks[0] for node, checks in unseen.items() if checks and node not in blind}}


def _accusers(
    nodes: Sequence[CheckedNode], numbers: Callable[[CheckedNode], Sequence[int]], checks: Iterable[NodeCheck]
) -> dict[CheckedNode, list[NodeCheck]]:
    # The checks that accuse each node; numbers: those of a node in `NodeCheck.accused`
    owners = {number: at for at, node in enumerate(nodes) for number in numbers(node)}
    found: list[list[NodeCheck]] = [[] for _ in nodes]
    for check in checks:
        for at in {owners[number] for number in check.accused if number in owners}:
            found[at].append(check)
    return dict(zip(nodes, found, strict=True))


# -- The round of a preflight (`preflight=true`), before the first one of the workload
#
# Its ranks make the checks of a node alone and, once the leader has all results and the gate opens, those of all nodes
# together. Ranks that do not report in time are killed, and a node with an agent that does not report in time is bad.


ALONE = 40.0  # timeout of the first part, in seconds: a driver may take long to wake up eight GPUs
TOGETHER = 50.0  # timeout of the second part, in seconds
PER_RANK = 0.02  # seconds added to TOGETHER for each rank
LOOK = 0.05  # seconds between two looks for reports of ranks
SLACK = 5.0  # timeout of a message between agents, in seconds


class Preflight:
    def __init__(
        self, plan: JobPlan, attempt: directory.Attempt, events: Events, connection: LeaderConnection,
        rendezvous: Rendezvous, *, round_number: int,
    ) -> None:  # fmt: skip
        # rendezvous: of all agents that take part; the first is the leader
        self._plan, self._events, self._connection = plan, events, connection
        self._rendezvous, self._round = rendezvous, round_number
        place = rendezvous.place_of(connection.own.index)
        assert place is not None
        self._place, self._own = place, rendezvous.members[place]
        self._folder = attempt.path / "preflight"
        self._nodes = nodes_of(rendezvous.members)
        self._workers = WorkerGroup(self._folder)
        self._exits: dict[int, WorkerExit] = {}
        self._together = TOGETHER + PER_RANK * rendezvous.world_size

    def run(self) -> PreflightVerdict:
        """Runs both parts and returns the leader's decision or, if it is lost, that to start without its node."""
        began, reports_at = time.monotonic(), 0  # the position of the agent that reports
        found: list[NodeCheck] = []
        with contextlib.ExitStack() as opened:
            opened.callback(self._workers.close)
            try:
                mine = self._start()
                if mine is None:
                    if self._rendezvous.listener is not None:  # the ranks of the workload need it, too
                        listener = self._rendezvous.listener.dup()
                        served = store.RanksStore(listener, self._rendezvous.addresses)
                        opened.callback(served.close)
                        self._workers.spared.add(served.pid)
                    mine = self._collect(ALONE_PART, ALONE)
                found += mine or ()
                verdict = self._agree(ALONE_PART, mine, ALONE)
                if verdict.then is PreflightThen.GO:
                    self._workers.open_gate()
                    mine = self._collect(TOGETHER_PART, self._together)
                    found += mine or ()
                    verdict = self._agree(TOGETHER_PART, mine, self._together, verdict.warnings)
            except LeaderLost as error:
                verdict, reports_at = self._without_leader(str(error)), 1
        self._report(verdict, found, time.monotonic() - began, first=self._place == reports_at)
        return verdict

    # -- ranks

    def _start(self) -> list[NodeCheck] | None:
        # Returns what is wrong with this node if its ranks cannot be started
        rendezvous, plan = self._rendezvous, self._plan
        timeout = self._together - 4 * SLACK  # clocks are compared before the all_reduce; `reach` may run after it
        ranks = placements(
            rendezvous.members, self._place, master=(rendezvous.host, rendezvous.port), run_id=plan.run_id,
            interface=rendezvous.interface, round_number=self._round, environ=os.environ,
        )  # fmt: skip
        listener = [] if rendezvous.listener is None else [rendezvous.listener.fileno()]
        try:
            self._workers.start(
                ranks, partial(check_rank, plan, self._folder, rendezvous, self._place, timeout),
                round_number=self._round, close_in_child=[*self._connection.descriptors(), *listener],
                ignore=(*ENDS, *WARNS),  # the agent ends them
            )  # fmt: skip
        except StartError as error:
            return [cannot_start(error.number, error.message, self._folder)]
        return None

    def _collect(self, part: str, timeout: float) -> list[NodeCheck] | None:
        deadline = time.monotonic() + timeout
        while True:
            self._exits.update((ended.place, ended) for ended in self._workers.poll())
            self._workers.forward_output()
            found: list[list[NodeCheck]] = []
            for place, report in enumerate(self._workers.reports()):
                if report and part in report:
                    found.append([from_json(each, NodeCheck) for each in report[part]])
                elif place in self._exits:
                    found.append([_died(part, self._exits[place])])
            if len(found) == self._own.ranks:
                return [each for checks in found for each in checks]
            if time.monotonic() >= deadline:
                return None
            self._connection.keep_alive(LOOK)

    # -- agents

    def _agree(
        self, part: str, mine: list[NodeCheck] | None, timeout: float, warnings: tuple[events.NodeFinding, ...] = ()
    ) -> PreflightVerdict:
        value = None if mine is None else as_json(mine)
        if self._place == 0:
            values = self._connection.collect(part, value, SLACK + (0.0 if mine is None else timeout))
            reports = {
                index: None if checks is None else [from_json(each, NodeCheck) for each in checks]
                for index, checks in values.items()
            }
            cluster, coordinator = self._plan.cluster, self._connection.coordinator
            assert coordinator is not None
            verdict = decide(
                self._nodes, reports, least=self._plan.least_agents,
                spares=len(coordinator.spares()),  # some may have come or gone during the checks
                scheduler=cluster.scheduler, settings=cluster.settings, timeout=timeout,
            )  # fmt: skip
            self._connection.publish(part, as_json(verdict))
        else:
            self._connection.send({"type": "report", "key": part, "value": value})
            verdict = from_json(self._connection.answer(part, 2 * SLACK + timeout), PreflightVerdict)
        return replace(verdict, warnings=(*warnings, *verdict.warnings))

    def _without_leader(self, error: str) -> PreflightVerdict:
        leader = self._rendezvous.members[0]
        node = next(node for node in self._nodes if leader.index in node.members)
        lost = NodeCheck(LEADER, found=f"it leads the agents, and does not respond: {error}")
        return PreflightVerdict(PreflightThen.WITHOUT, (_finding(node, lost),), node.members)

    # -- reporting

    def _report(self, verdict: PreflightVerdict, found: Sequence[NodeCheck], seconds: float, *, first: bool) -> None:
        self._events(events.NodeChecked(
            round=self._round, host=self._own.host, node=self._own.node_rank,
            fine=self._own.index not in verdict.lost, seconds=round(seconds, 3),
            checks=tuple(
                events.CheckEnded(each.name, each.level.value, events.Observation(each.found), each.ms)
                for each in found
            ),
        ))  # fmt: skip
        if not first:
            return
        event = events.Preflighted(
            round=self._round, then=verdict.then, nodes=len(self._nodes), bad=verdict.bad, warnings=verdict.warnings,
            seconds=round(seconds, 3),
        )  # fmt: skip
        self._events(event)
        if verdict.then is PreflightThen.FAIL:  # the cause of the failure names the bad nodes
            event = replace(event, bad=())
        for line in of_preflight(event):
            log_line(line)


def _died(part: str, ended: WorkerExit) -> NodeCheck:
    text = f"local rank {ended.place} {end_of_process(ended.code)}"
    if part == ALONE_PART:
        return NodeCheck("device", CheckLevel.FAILED, f"{text} during the checks of this node alone")
    aborted = ended.code == -signal.SIGABRT  # as NCCL does on a timeout
    return NodeCheck("all_reduce", CheckLevel.FAILED, f"{text} in an all_reduce", symptom=aborted)


def nodes_of(members: Sequence[Member]) -> list[CheckedNode]:
    """Returns the nodes of these agents, in their order."""
    found: dict[int, CheckedNode] = {}
    first = 0
    for member in members:
        name = node_of(member.host, member.node_rank)
        node = found.get(member.node_rank) or CheckedNode(name, member.host, (), ())
        ranks = range(first, first + member.ranks)
        found[member.node_rank] = replace(node, members=(*node.members, member.index), ranks=(*node.ranks, *ranks))
        first += member.ranks
    return list(found.values())
