"""Seconds of checks on every node before a run's ranks start: `preflight=true`.

The agents have met. Each forks a process for every rank that it will have, and these do the checks; what they find is
put into the common store, and the first agent decides for all (`preflight_verdict`). There are two parts:

1. what a node can tell alone: its devices, free space, whether the run directory is shared;
2. all of them together: clocks, and an all_reduce with a known result.

Nothing of it can hang an agent: a process that says nothing in time is killed, an agent that does counts as a bad node.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed import DistStoreError, Store

from launcher import runs
from launcher.node import preflight_process as processes
from launcher.node import preflight_verdict as verdicts
from launcher.node.events import Events
from launcher.node.forks import garbage_kept
from launcher.node.line import Line, LineDead
from launcher.node.preflight_checks import Check, Level
from launcher.node.preflight_verdict import Node, Then, Verdict
from launcher.node.rendezvous import Meeting, Member
from launcher.plan import JobPlan

ALONE = 40.0  # seconds for what a node tells alone: a driver may take long to wake up eight GPUs
TOGETHER = 50.0  # seconds for all of them; more with many ranks
PER_RANK = 0.02  # seconds more for each
SLACK = 5.0  # seconds that word of it takes
READ = 5.0  # seconds that the agent with the store waits for the others to have read the verdict

_context = multiprocessing.get_context("fork")


class Preflight:
    """The preflight of one member of a meeting."""

    def __init__(
        self, plan: JobPlan, attempt: runs.Attempt, events: Events, meeting: Meeting, index: int, *,
        least: int, name: Callable[[Sequence[int]], str], round_number: int,
    ) -> None:  # fmt: skip
        """
        Args:
            plan: the run.
            attempt: this attempt.
            events: of this agent.
            meeting: of all that take part.
            index: of this agent among its members; the one at 0 decides.
            least: members with which the run can go on.
            name: what to call members, by their indices.
            round_number: of the meeting.
        """
        self._plan, self._attempt, self._events = plan, attempt, events
        self._meeting, self._index, self._least, self._round = meeting, index, least, round_number
        self._me = meeting.members[index]
        self._nodes = nodes_of(meeting.members, name)
        self._children: list[tuple[Any, Connection]] = []
        world = sum(member.ranks for member in meeting.members)
        self._together = TOGETHER + PER_RANK * world

    def run(self) -> Verdict:
        """The verdict, the same on every node. Returns when no process of it is left."""
        began = time.monotonic()
        meeting = self._meeting
        meeting.store.set_timeout(timedelta(seconds=ALONE + self._together))
        found: list[Check] = []
        said = False
        try:
            self._fork()
            line = Line(meeting.store, ALONE + self._together)
            try:
                self._begin(line)
                mine = self._answers(ALONE, self._died_alone)
                found += mine or ()
                verdict = self._agree(line, "alone", mine, ALONE)
                if verdict.then is Then.GO:
                    self._send("go")
                    mine = self._answers(self._together, self._died_together)
                    found += mine or ()
                    verdict = self._agree(line, "together", mine, self._together, verdict.warnings)
                said = True
                with contextlib.suppress(LineDead):
                    self._part(line)
            except LineDead as error:
                master = meeting.members[0]
                verdict = self._without_master(master, f"it runs the common store, which does not answer: {error}")
            finally:
                line.close()
        finally:
            self._end()
        self._tell(verdict, found, time.monotonic() - began, first=self._index == (0 if said else 1))
        return verdict

    # -- processes

    def _fork(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = self._together - 4 * SLACK  # the clocks come first, and then, perhaps, doors are knocked at
        for place in range(self._me.ranks):
            ours, theirs = _context.Pipe()
            arguments = (self._plan, self._attempt.path, self._meeting, self._index, place, timeout, theirs)
            process = _context.Process(target=processes.run, args=(*arguments, os.getpid()), daemon=True)
            with garbage_kept():
                process.start()
            theirs.close()  # so that its end is seen here
            self._children.append((process, ours))

    def _begin(self, line: Line) -> None:
        """Lets the processes use the store, when the first agent has forked its own.

        The thread that serves its store looks up names of whoever connects, and a fork at that moment may copy a lock.
        """
        if self._index == 0:
            line.ask(lambda store: store.set("preflight/forked", "1"))
        else:
            line.ask(lambda store: store.get("preflight/forked"))
        self._send("begin")

    def _send(self, word: str) -> None:
        for _, pipe in self._children:
            with contextlib.suppress(OSError):
                pipe.send(word)

    def _answers(self, patience: float, died: Callable[[int], Check]) -> list[Check] | None:
        """What the processes have found, of all of them; None: one says nothing."""
        give_up, found = time.monotonic() + patience, {}
        waiting = {pipe: place for place, (_, pipe) in enumerate(self._children)}
        while waiting and (left := give_up - time.monotonic()) > 0:
            for pipe in multiprocessing.connection.wait([*waiting], left):
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

    # -- agents

    def _agree(
        self, line: Line, part: str, mine: list[Check] | None, patience: float,
        warnings: tuple[tuple[str, str], ...] = (),
    ) -> Verdict:  # fmt: skip
        """The verdict on one part, which the first agent makes of what all have told.

        Raises:
            LineDead: that agent is gone.
        """
        members, key = self._meeting.members, f"preflight/{part}"
        text = "null" if mine is None else json.dumps([asdict(each) for each in mine])
        line.ask(lambda store: store.set(f"{key}/{self._me.index}", text))
        if self._index == 0:
            keys = {member.index: f"{key}/{member.index}" for member in members}
            told = line.ask(lambda store: _gather(store, keys, SLACK + (0.0 if mine is None else patience)))
            silent = f"said nothing within {patience:g} s: does a device or a file system hang there?"
            verdict = verdicts.decide(
                self._nodes, told, least=self._least, scheduler=self._plan.scheduler, silent=silent
            )
            line.ask(lambda store: store.set(key, json.dumps(asdict(verdict))))
        else:
            verdict = verdict_of(line.ask(lambda store: store.get(key)))
        kept = (*warnings, *verdict.warnings)
        return Verdict(verdict.then, verdict.bad, verdict.lost, kept, verdict.cause, verdict.exit_code)

    def _part(self, line: Line) -> None:
        """The store lives in the first agent's process, which may have to leave: it waits until all have read."""
        count = line.ask(lambda store: store.add("preflight/read", 1))
        give_up = time.monotonic() + READ
        while self._index == 0 and count < len(self._meeting.members) and time.monotonic() < give_up:
            time.sleep(0.005)
            count = line.ask(lambda store: store.add("preflight/read", 0))

    def _without_master(self, master: Member, words: str) -> Verdict:
        node = next(node for node in self._nodes if master.index in node.members)
        bad = ((node.name, words),)
        return Verdict(Then.WITHOUT, bad, node.members)

    # -- what is told

    def _tell(self, verdict: Verdict, found: Sequence[Check], seconds: float, *, first: bool) -> None:
        shown = [
            {name: value for name, value in asdict(each).items() if name in ("name", "level", "words", "ms")}
            for each in found
        ]
        fine = self._me.index not in verdict.lost
        self._events(
            "preflight", round=self._round, host=self._me.host, node=self._me.node_rank, fine=fine,
            seconds=round(seconds, 3), checks=shown,
        )  # fmt: skip
        if not first:
            return
        self._events(
            "preflighted", round=self._round, then=verdict.then.value, nodes=len(self._nodes), bad=verdict.bad,
            warnings=verdict.warnings, seconds=round(seconds, 3),
        )  # fmt: skip
        from launcher.health import preflight_words

        bad = () if verdict.then is Then.FAIL else verdict.bad  # they are the cause, which is told as such
        for line in preflight_words(verdict.then.value, len(self._nodes), bad, verdict.warnings, seconds):
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


def verdict_of(text: bytes) -> Verdict:
    """The inverse of what the first agent writes."""
    values: dict[str, Any] = json.loads(text)
    pairs = {name: tuple((node, words) for node, words in values[name]) for name in ("bad", "warnings")}
    return Verdict(
        Then(values["then"]), pairs["bad"], tuple(values["lost"]), pairs["warnings"], values["cause"],
        values["exit_code"],
    )  # fmt: skip


def _gather(store: Store, keys: Mapping[int, str], patience: float) -> dict[int, list[Check] | None]:
    """What members have told, by index, when all have or time is up."""
    with contextlib.suppress(DistStoreError):
        store.wait([*keys.values()], timedelta(seconds=patience))
    told: dict[int, list[Check] | None] = {}
    for index, key in keys.items():
        values = json.loads(store.get(key)) if store.check([key]) else None
        told[index] = None if values is None else [
            Check(**{**each, "level": Level(each["level"]), "accused": tuple(each["accused"])}) for each in values
        ]  # fmt: skip
    return told
