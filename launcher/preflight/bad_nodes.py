"""Decides which nodes of a preflight are bad, and whether the run starts without them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.failures.codes import CheckCode, PreflightReason, PreflightThen
from launcher.preflight.checks import Check, Level
from launcher.runs.events import Finding, Observation, PreflightFailure
from launcher.schedulers import registry


@dataclass(frozen=True)
class Node:
    """A node that takes part in a preflight."""

    name: str  # name of the node in messages
    host: str  # host name
    members: tuple[int, ...]  # indices of the node's agents
    ranks: tuple[int, ...]  # global ranks on the node


@dataclass(frozen=True)
class Verdict:
    """The leader's decision, which all agents follow."""

    then: PreflightThen  # whether the run starts, starts without the bad nodes, or fails
    bad: tuple[Finding, ...] = ()  # each bad node, with what is wrong there
    lost: tuple[int, ...] = ()  # indices of the bad nodes' agents
    warnings: tuple[Finding, ...] = ()  # nodes with something that may become a problem
    failure: PreflightFailure | None = None  # why the attempt fails; None: it does not fail
    exit_code: int = errors.FAILED  # exit code of the attempt if it fails


SILENT, LEADER = "silent", "leader"  # in place of a check's name: no report in time; connection to the leader lost
SETTINGS = {"device", "space", "run_dir", "fabric"}  # checks that fail on all nodes if a config key is wrong
MOST_FINDINGS = 4  # largest number of problems in a PreflightFailure
Reports = Mapping[int, Sequence[Check] | None]  # checks by index of the agent; None: it did not report in time


def decide(
    nodes: Sequence[Node], reports: Reports, *, least: int, scheduler: str, settings: Mapping[str, Any], timeout: float
) -> Verdict:
    """Returns the leader's decision. The first row that applies decides.

    | the checks | decision |
    |---|---|
    | no check failed | go |
    | some nodes are bad, and enough are left | start without them |
    | all of several nodes are bad, by the same check of SETTINGS | fail (93): other nodes would fail too |
    | some nodes are bad, and too few are left | fail (1): the run can be resumed on other nodes |
    | ranks fail together, and the bad node is unknown | fail (1) |

    scheduler: name of the scheduler that started the run; it decides how the failure advises to exclude nodes.
    settings: the plan's `cluster.settings`, with the nodes that the run excludes already.
    timeout: seconds within which a node must report.
    """
    checks_of = {node: [check for index in node.members for check in reports.get(index) or ()] for node in nodes}
    warnings = tuple(
        dict.fromkeys(
            _finding(node, check) for node in nodes for check in checks_of[node] if check.level is Level.WARNING
        )
    )
    failed = {node: [each for each in checks if each.level is Level.FAILED] for node, checks in checks_of.items()}
    found = blame(nodes, failed, {node for node in nodes if any(reports.get(each) is None for each in node.members)})
    if not found:
        symptoms = tuple(_finding(node, checks[0]) for node, checks in failed.items() if checks)
        if not symptoms:
            return Verdict(PreflightThen.GO, warnings=warnings)
        failure = PreflightFailure(
            reason=PreflightReason.UNKNOWN_NODE, nodes=len(nodes), failed=len(symptoms), findings=symptoms[:1]
        )
        return Verdict(PreflightThen.FAIL, warnings=warnings, failure=failure)
    silent = Observation(code=CheckCode.SILENT, seconds=timeout)
    bad = tuple(
        Finding(node.name, node.host, SILENT, silent) if check is None else _finding(node, check)
        for node, check in found.items()
    )
    lost = tuple(index for node in found for index in node.members)
    if sum(len(node.members) for node in nodes) - len(lost) >= max(least, 1):
        return Verdict(PreflightThen.WITHOUT, bad, lost, warnings)
    names = {each.check for each in bad}
    if len(found) == len(nodes) > 1 and len(names) == 1:
        failure = PreflightFailure(
            reason=PreflightReason.ALL_NODES, nodes=len(nodes), failed=len(nodes), findings=bad[:1]
        )
        code = errors.NO_RETRY if names <= SETTINGS else errors.FAILED
        return Verdict(PreflightThen.FAIL, bad, lost, warnings, failure, code)
    hosts = ",".join({each.host: None for each in bad})
    failure = PreflightFailure(
        reason=PreflightReason.TOO_FEW, nodes=len(nodes), failed=len(bad), findings=bad[:MOST_FINDINGS],
        exclude=registry.without(scheduler, hosts, settings) if len(nodes) > 1 else "",
    )  # fmt: skip
    return Verdict(PreflightThen.FAIL, bad, lost, warnings, failure)


def _finding(node: Node, check: Check) -> Finding:
    return Finding(node.name, node.host, check.name, check.found)


def blame(
    nodes: Sequence[Node], failed: Mapping[Node, Sequence[Check]], silent: Collection[Node]
) -> dict[Node, Check | None]:
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
    found: dict[Node, Check | None] = {node: None for node in nodes if node in silent}
    for node in nodes:
        if own := [check for check in failed[node] if not check.symptom and not check.accused]:
            found[node] = own[0]
    if found:
        return {node: found[node] for node in nodes if node in found}
    accusing = {node: next((check for check in failed[node] if check.accused), None) for node in nodes}
    return _accused(nodes, {node: check for node, check in accusing.items() if check is not None})


def _accused(nodes: Sequence[Node], accusing: Mapping[Node, Check]) -> dict[Node, Check | None]:
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
