"""Which nodes a preflight finds bad, and what is done about it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from launcher import errors
from launcher.failures.codes import PreflightThen
from launcher.preflight.checks import Check, Level
from launcher.runs.events import Finding
from launcher.schedulers import registry
from launcher.schedulers.scheduler import ExcludesNodes


@dataclass(frozen=True)
class Node:
    """One node that takes part.

    Attributes:
        name: what to call it.
        host: its host's name.
        members: indices of its agents.
        ranks: its ranks.
    """

    name: str
    host: str
    members: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """What all agents hear.

    Attributes:
        then: what is done.
        bad: nodes that are, each with what is wrong with it.
        lost: indices of their members.
        warnings: what may become a problem.
        cause: for the user, if the attempt fails; else empty.
        exit_code: of the attempt, if it fails.
    """

    then: PreflightThen
    bad: tuple[Finding, ...] = ()
    lost: tuple[int, ...] = ()
    warnings: tuple[Finding, ...] = ()
    cause: str = ""
    exit_code: int = errors.FAILED


SILENT, LEADER = "silent", "leader"  # in the place of a check: it said nothing in time; it led, and was lost
SETTINGS = {"device", "space", "run_dir"}  # checks that fail everywhere when a key is wrong
Reports = Mapping[int, Sequence[Check] | None]  # of each member; None: it said nothing in time


def decide(nodes: Sequence[Node], reports: Reports, *, least: int, scheduler: str, silent: str) -> Verdict:
    """What is done; the first line that fits counts.

    | what is seen | then |
    |---|---|
    | no check failed | go |
    | some nodes are bad, and enough are left | the others go on without them |
    | some are bad, and too few are left | fail (1): the run can be resumed elsewhere, by whoever excludes them |
    | all of several are bad, by the same one of SETTINGS | fail (93): no other node helps |
    | ranks fail together, and nobody can tell whose fault it is | fail (1) |

    Args:
        nodes: all that take part.
        reports: of their members.
        least: members that must be left.
        scheduler: which one started the run, for advice.
        silent: what is said of a node without a word.
    """
    told = {node: [check for index in node.members for check in reports.get(index) or ()] for node in nodes}
    warnings = tuple(
        dict.fromkeys(
            Finding(node.name, node.host, check.name, check.words)
            for node in nodes
            for check in told[node]
            if check.level is Level.WARNING
        )
    )
    failed = {node: [check for check in checks if check.level is Level.FAILED] for node, checks in told.items()}
    found = blame(nodes, failed, {node for node in nodes if any(reports.get(each) is None for each in node.members)})
    if not found:
        symptoms = [(node, check.words) for node, checks in failed.items() for check in checks]
        if not symptoms:
            return Verdict(PreflightThen.GO, warnings=warnings)
        who = f"{len({node for node, _ in symptoms})} of {len(nodes)} nodes"
        cause = f"preflight: {who} lost the others, and nothing tells whose fault it is: {symptoms[0][1]}"
        return Verdict(PreflightThen.FAIL, warnings=warnings, cause=cause)
    bad = tuple(
        Finding(node.name, node.host, *((SILENT, silent) if check is None else (check.name, check.words)))
        for node, check in found.items()
    )
    lost = tuple(index for node in found for index in node.members)
    if sum(len(node.members) for node in nodes) - len(lost) >= max(least, 1):
        return Verdict(PreflightThen.WITHOUT, bad, lost, warnings)
    names = {each.check for each in bad}
    if len(found) == len(nodes) > 1 and len(names) == 1:
        cause = f"preflight: all {len(nodes)} nodes fail: {bad[0].words}"
        code = errors.NO_RETRY if names <= SETTINGS else errors.FAILED
        return Verdict(PreflightThen.FAIL, bad, lost, warnings, cause, code)
    shown = "; ".join(f"{each.name}: {each.words}" for each in bad[:4]) + (" ..." if len(bad) > 4 else "")
    cause = f"preflight: {shown}{advice(list(found), len(nodes), scheduler)}"
    return Verdict(PreflightThen.FAIL, bad, lost, warnings, cause)


def advice(bad: Sequence[Node], nodes: int, scheduler: str) -> str:
    """How to go on without these nodes; nothing where there is only one."""
    if nodes == 1:
        return ""
    hosts = ",".join(dict.fromkeys(node.host for node in bad))
    if isinstance(started_by := registry.scheduler(scheduler), ExcludesNodes):
        return f". Resume the run with {started_by.without(hosts)}, or give it spare nodes (min_nodes less than nodes)"
    return ". Give the run spare nodes (min_nodes less than nodes), which it then does without"


def blame(
    nodes: Sequence[Node], failed: Mapping[Node, Sequence[Check]], silent: Collection[Node]
) -> dict[Node, Check | None]:
    """The bad nodes, each with the check that tells (None: its silence). The first line that fits some node counts.

    | a node | because |
    |---|---|
    | said nothing, or has an error of its own | the others' errors may come of that |
    | cannot reach (or see the files of) half of those it looked for, or is not reached by others that can | |
    | is where wrong elements of an all_reduce come from, as most see it; or, if there is none, sees some | |

    Who has only lost other ranks, or waited for them in vain, is not blamed.
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
    """Whose fault it is when nodes accuse others."""
    if not accusing:
        return {}
    most = len(nodes) / 2
    if next(iter(accusing.values())).name == "all_reduce":
        votes = {node: [each for each in accusing.values() if {*each.accused} & {*node.ranks}] for node in nodes}
        return {node: checks[0] for node, checks in votes.items() if len(checks) > most} or dict(accusing)
    blind = {node: check for node, check in accusing.items() if 2 * len(check.accused) > check.looked}
    if len(blind) > most:  # then it is whom they do not see
        blind = {}
    seers = [check for node, check in accusing.items() if node not in blind]
    unseen = {node: [each for each in seers if {*each.accused} & {*node.members}] for node in nodes}
    return {**blind, **{node: checks[0] for node, checks in unseen.items() if checks and node not in blind}}
