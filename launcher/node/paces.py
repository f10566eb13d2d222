"""How fast ranks are, in the attempt's folder `pace`, and who is slower than the others, in words.

Every agent writes what its own ranks have told; the first one hears it of all and says once which rank is slow.
Readers come to the same verdict by `launcher.health.stragglers`.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from launcher import event_file, runs
from launcher.health import Straggler, stragglers
from launcher.node.board import Board
from launcher.node.events import Events
from launcher.node.line import LineDead
from launcher.node.rendezvous import Meeting
from launcher.plan import JobPlan

FIRST, MOST = 10.0, 60.0  # seconds between two events of an agent: at first, and in a long run
SHARE = 0.01  # of the time since the round began, in between
HEARD = 20000  # events of all agents that the first one remembers


def interval(age: float, straggler_time: float) -> float:
    """Seconds between two events. Pure.

    Args:
        age: seconds since the round began.
        straggler_time: seconds of which there are to be some events.
    """
    return min(max(min(FIRST, straggler_time / 4), SHARE * age), MOST, max(straggler_time, 1.0))


class Paces:
    """The paces of one agent's ranks, in one round."""

    def __init__(
        self, plan: JobPlan, attempt: runs.Attempt, events: Events, board: Board, meeting: Meeting, index: int,
        round_number: int,
    ) -> None:  # fmt: skip
        """
        Args:
            plan, attempt, events: see their classes.
            board: of the round.
            meeting: of the round.
            index: of this agent among its members.
            round_number: the round.
        """
        self._plan, self._events, self._board, self._round = plan, events, board, round_number
        self._members, self._index, self._me = len(meeting.members), index, meeting.members[index]
        self._first_rank = sum(member.ranks for member in meeting.members[:index])
        self._file = attempt.path / "pace" / f"member-{self._me.index}.jsonl"
        if index == 0:
            for place in range(self._members):  # so that they can be read before all have told one
                meeting.store.set(f"pace/{place}", "")
        self._began = time.monotonic()
        self._next = 0.0
        self._steps = [0] * self._me.ranks
        self._heard: list[list[float]] = [[] for _ in range(self._me.ranks)]
        self._latest = [b""] * self._members
        self._all: list[dict[str, Any]] = []
        self._named: set[int] = set()

    def look(self, paces: Sequence[tuple[float, int]], now: float) -> None:
        """Takes in what ranks have told, and tells it now and then.

        Args:
            paces: of each rank of this agent, see `Pulse.paces`.
            now: seconds, by the monotonic clock.
        """
        for place, (seconds, steps) in enumerate(paces):
            if steps > self._steps[place]:
                self._steps[place] = steps
                self._heard[place].append(seconds)
        if now < self._next or not any(self._heard):
            return
        self._next = now + interval(now - self._began, self._plan.straggler_time)
        told: dict[str, Any] = {
            "round": self._round, "host": self._me.host, "rank": self._first_rank,
            "seconds": [float(f"{statistics.median(each):.4g}") if each else None for each in self._heard],
        }  # fmt: skip
        self._heard = [[] for _ in self._heard]
        with contextlib.suppress(OSError):  # a full disk: no training needs it
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            event_file.append(self._file, "pace", **told)
        with contextlib.suppress(LineDead):  # which others look at
            self._board.tell_pace(json.dumps({"time": round(time.time(), 3), "event": "pace", **told}))
            if self._index == 0:
                self._judge(self._board.paces(self._members))

    def _judge(self, texts: Sequence[bytes]) -> None:
        self._all += [json.loads(text) for text, old in zip(texts, self._latest, strict=True) if text and text != old]
        del self._all[:-HEARD]
        self._latest = list(texts)
        found = stragglers(self._all, self._plan.straggler_factor, self._plan.straggler_time)
        for each in found:
            if each.until is None and each.rank not in self._named:
                self._named.add(each.rank)
                self._name(each)

    def _name(self, straggler: Straggler) -> None:
        self._events(
            "straggler", round=self._round, rank=straggler.rank, host=straggler.host, ratio=straggler.ratio,
            since=straggler.since,
        )  # fmt: skip
        with contextlib.suppress(OSError):
            print(f"launcher: {straggler.words}", file=sys.stderr, flush=True)
