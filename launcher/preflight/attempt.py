"""Seconds of checks on every node before a run's ranks start: `preflight=true`.

The agents have met. Each forks a process for every rank that it will have, and these do the checks; what they find is
sent to the leading agent, which decides for all (`preflight_verdict`). There are two parts:

1. what a node can tell alone: its devices, free space, whether the run directory is shared;
2. all of them together: clocks, and an all_reduce with a known result.

Nothing of it can hang an agent: a process that says nothing in time is killed, an agent that does counts as a bad node.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

from launcher.failures.codes import PreflightThen
from launcher.preflight import bad_nodes as verdicts
from launcher.preflight import process as processes
from launcher.preflight.bad_nodes import LEADER, Node, Verdict
from launcher.preflight.checks import Check, Level
from launcher.rendezvous import protocol, store
from launcher.rendezvous.protocol import LeaderLost, Meeting, Member
from launcher.runs import directory
from launcher.runs.event_writer import Events
from launcher.runs.events import CheckEnded, Finding, NodeChecked, Preflighted
from launcher.runs.health import preflight_words
from launcher.spec.plan import JobPlan

ALONE = 40.0  # seconds for what a node tells alone: a driver may take long to wake up eight GPUs
TOGETHER = 50.0  # seconds for all of them; more with many ranks
PER_RANK = 0.02  # seconds more for each
LOOK = 0.2  # seconds between two looks at the other agents meanwhile
SLACK = 5.0  # seconds that word of it takes

_context = multiprocessing.get_context("fork")


class Agents(Protocol):
    """The connection to the other agents while no ranks run; see `launcher.agent.control.Control`."""

    me: Member

    def names(self, indices: Iterable[int]) -> str:
        """What to call these members."""

    def collect(self, key: str, value: Any, timeout: float) -> dict[int, Any]:
        """On the leader: what each member has reported within `timeout` seconds."""

    def publish(self, key: str, value: Any) -> None:
        """On the leader: sends a value to all other members."""

    def answer(self, key: str, timeout: float) -> Any:
        """On the others: what the leader has published; raises LeaderLost."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to the leader."""

    def keep_alive(self) -> None:
        """Sends and takes heartbeats."""


class Preflight:
    """The preflight of one member of a meeting."""

    def __init__(
        self, plan: JobPlan, attempt: directory.Attempt, events: Events, agents: Agents, meeting: Meeting, *,
        round_number: int,
    ) -> None:  # fmt: skip
        """
        Args:
            plan: the run.
            attempt: this attempt.
            events: of this agent.
            agents: the connection to the other agents.
            meeting: of all that take part; the first of them decides.
            round_number: of the meeting.
        """
        self._plan, self._attempt, self._events, self._agents = plan, attempt, events, agents
        self._meeting, self._round = meeting, round_number
        place = meeting.place_of(agents.me.index)
        assert place is not None
        self._place, self._me = place, meeting.members[place]
        self._least = plan.min_nodes * plan.tasks_per_node
        self._nodes = nodes_of(meeting.members, agents.names)
        self._children: list[tuple[Any, Connection]] = []
        self._store: store.RanksStore | None = None
        self._together = TOGETHER + PER_RANK * meeting.world_size

    def run(self) -> Verdict:
        """The verdict, the same on every node. Returns when no process of it is left."""
        began = time.monotonic()
        found: list[Check] = []
        said = False
        try:
            self._fork()
            self._send("begin")
            mine = self._answers(ALONE, self._died_alone)
            found += mine or ()
            verdict = self._agree("alone", mine, ALONE)
            if verdict.then is PreflightThen.GO:
                self._send("go")
                mine = self._answers(self._together, self._died_together)
                found += mine or ()
                verdict = self._agree("together", mine, self._together, verdict.warnings)
            said = True
        except LeaderLost as error:
            verdict = self._without_leader(f"it leads the agents, and does not answer: {error}")
        finally:
            self._end()
        self._tell(verdict, found, time.monotonic() - began, first=self._place == (0 if said else 1))
        return verdict

    # -- processes

    def _fork(self) -> None:
        """Forks the processes, and serves the store that they share; on the leader in this order (see `store`)."""
        key = f"preflight/{self._round}/port"
        listener = None
        if self._place == 0:
            ports = protocol.free_ports(self._plan.cluster.port_range)
            listener = protocol.listen(ports, protocol.where_reached(self._meeting.members))
            port = listener.getsockname()[1]
            self._agents.publish(key, port)
        else:
            port = self._agents.answer(key, ALONE)
        meeting = replace(self._meeting, port=port, listener=None)
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = self._together - 4 * SLACK  # the clocks come first, and then, perhaps, doors are knocked at
        for place in range(self._me.ranks):
            ours, theirs = _context.Pipe()
            arguments = (self._plan, self._attempt.path, meeting, self._place, place, timeout, theirs)
            process = _context.Process(target=processes.run, args=(*arguments, os.getpid()), daemon=True)
            process.start()
            theirs.close()  # so that its end is seen here
            self._children.append((process, ours))
        if listener is not None:
            self._store = store.RanksStore(listener, self._meeting.addresses)

    def _send(self, word: str) -> None:
        for _, pipe in self._children:
            with contextlib.suppress(OSError):
                pipe.send(word)

    def _answers(self, patience: float, died: Callable[[int], Check]) -> list[Check] | None:
        """What the processes have found, of all of them; None: one says nothing."""
        give_up, found = time.monotonic() + patience, {}
        waiting = {pipe: place for place, (_, pipe) in enumerate(self._children)}
        while waiting and (left := give_up - time.monotonic()) > 0:
            self._agents.keep_alive()
            for pipe in multiprocessing.connection.wait([*waiting], min(left, LOOK)):
                assert isinstance(pipe, Connection)
                place = waiting.pop(pipe)
                try:
                    found[place] = pipe.recv()
                except (EOFError, OSError):
                    found[place] = [died(place)]
        return None if waiting else [each for place in sorted(found) for each in found[place]]

    def _died_alone(self, place: int) -> Check:
        code = self._code(place)
        words = f"the process that checks the device of local rank {place} {_how(code)}"
        return Check("device", Level.FAILED, words)

    def _died_together(self, place: int) -> Check:
        code = self._code(place)
        words = f"local rank {place} {_how(code)} in an all_reduce"
        return Check("all_reduce", Level.FAILED, words, symptom=code == -signal.SIGABRT)  # NCCL's when others are late

    def _code(self, place: int) -> int | None:
        process = self._children[place][0]
        process.join(1)
        code: int | None = process.exitcode
        return code

    def _end(self) -> None:
        self._send("end")
        for process, pipe in self._children:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join(1)  # one in state D stays, and the agent goes on
            pipe.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    # -- agents

    def _agree(
        self, part: str, mine: list[Check] | None, timeout: float, warnings: tuple[Finding, ...] = ()
    ) -> Verdict:
        """The verdict on one part, which the leader makes of what all have found.

        Raises:
            LeaderLost: the leader is gone.
        """
        key = f"preflight/{self._round}/{part}"
        value = None if mine is None else [asdict(each) for each in mine]
        if self._place == 0:
            reports = self._agents.collect(key, value, SLACK + (0.0 if mine is None else timeout))
            checks = {member.index: checks_of(reports.get(member.index)) for member in self._meeting.members}
            silent = f"said nothing within {timeout:g} s: does a device or a file system hang there?"
            verdict = verdicts.decide(
                self._nodes, checks, least=self._least, scheduler=self._plan.cluster.scheduler, silent=silent
            )
            self._agents.publish(key, asdict(verdict))
        else:
            self._agents.send({"type": "report", "key": key, "value": value})
            verdict = verdict_of(self._agents.answer(key, 2 * SLACK + timeout))
        kept = (*warnings, *verdict.warnings)
        return Verdict(verdict.then, verdict.bad, verdict.lost, kept, verdict.cause, verdict.exit_code)

    def _without_leader(self, words: str) -> Verdict:
        leader = self._meeting.members[0]
        node = next(node for node in self._nodes if leader.index in node.members)
        bad = (Finding(node.name, node.host, LEADER, words),)
        return Verdict(PreflightThen.WITHOUT, bad, node.members)

    # -- what is told

    def _tell(self, verdict: Verdict, found: Sequence[Check], seconds: float, *, first: bool) -> None:
        self._events(
            NodeChecked(
                round=self._round, host=self._me.host, node=self._me.node_rank,
                fine=self._me.index not in verdict.lost, seconds=round(seconds, 3),
                checks=tuple(CheckEnded(each.name, each.level.value, each.words, each.ms) for each in found),
            )
        )  # fmt: skip
        if not first:
            return
        told = Preflighted(
            round=self._round, then=verdict.then, nodes=len(self._nodes), bad=verdict.bad, warnings=verdict.warnings,
            seconds=round(seconds, 3),
        )  # fmt: skip
        self._events(told)
        if verdict.then is PreflightThen.FAIL:  # bad nodes are the cause, which is told as such
            told = replace(told, bad=())
        for line in preflight_words(told):
            with contextlib.suppress(OSError):
                print(f"launcher: {line}", file=sys.stderr, flush=True)


def _how(code: int | None) -> str:
    killed = code is not None and code < 0
    return f"was killed by {signal.Signals(-code).name}" if killed and code else f"ended with exit code {code}"


def nodes_of(members: Sequence[Member], name: Callable[[Sequence[int]], str]) -> list[Node]:
    """The nodes that members are on, in order. Pure."""
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
        nodes.append(Node(called, host, tuple(indices[node]), tuple(ranks[node])))
    return nodes


def verdict_of(values: Mapping[str, Any]) -> Verdict:
    """The inverse of what the leader sends."""
    found = {name: tuple(Finding(**each) for each in values[name]) for name in ("bad", "warnings")}
    return Verdict(
        PreflightThen(values["then"]), found["bad"], tuple(values["lost"]), found["warnings"], values["cause"],
        values["exit_code"],
    )  # fmt: skip


def checks_of(values: Sequence[Mapping[str, Any]] | None) -> list[Check] | None:
    """The inverse of what an agent reports; None: it has not."""
    if values is None:
        return None
    return [Check(**{**each, "level": Level(each["level"]), "accused": tuple(each["accused"])}) for each in values]
