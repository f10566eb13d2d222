"""How fast ranks are, in the attempt's folder `pace`, and who is slower than the others, in words.

Every agent writes how fast its own ranks are and sends it to the leader, which says once which rank is slow.
Readers come to the same verdict by `launcher.runs.health.stragglers`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from launcher.log_line import log_line
from launcher.rendezvous.members import Rendezvous
from launcher.runs import directory, event_file
from launcher.runs.event_writer import Events
from launcher.runs.events import Pace, SlowRank
from launcher.runs.health import Straggler, stragglers
from launcher.spec.plan import JobPlan

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
        self,
        plan: JobPlan,
        attempt: directory.Attempt,
        events: Events,
        rendezvous: Rendezvous,
        index: int,
        round_number: int,
    ) -> None:
        """
        Args:
            plan, attempt, events: see their classes.
            rendezvous: of the round.
            index: of this agent among its members.
            round_number: the round.
        """
        self._plan, self._events, self._round = plan, events, round_number
        self._me, self._first_rank = rendezvous.members[index], rendezvous.first_rank(index)
        self._file = attempt.path / "pace" / f"member-{self._me.index}.jsonl"
        self._began = time.monotonic()
        self._next = 0.0
        self._steps = [0] * self._me.ranks
        self._heard: list[list[float]] = [[] for _ in range(self._me.ranks)]
        self._all: list[dict[str, Any]] = []
        self._named: set[int] = set()

    def look(self, paces: Sequence[tuple[float, int]], now: float) -> dict[str, Any] | None:
        """Takes in how fast ranks are; now and then what is to be sent to the leader.

        Args:
            paces: of each rank of this agent, see `Pulse.paces`.
            now: seconds, by the monotonic clock.
        """
        for place, (seconds, steps) in enumerate(paces):
            if steps > self._steps[place]:
                self._steps[place] = steps
                self._heard[place].append(seconds)
        if now < self._next or not any(self._heard):
            return None
        self._next = now + interval(now - self._began, self._plan.train.straggler_time)
        pace = Pace(
            time=time.time(), round=self._round, rank=self._first_rank, host=self._me.host,
            seconds=tuple(float(f"{statistics.median(each):.4g}") if each else None for each in self._heard),
        )  # fmt: skip
        self._heard = [[] for _ in self._heard]
        with contextlib.suppress(OSError):  # a full disk: no training needs it
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            event_file.append(self._file, pace)
        return event_file.entry(pace)

    def judge(self, paces: Sequence[dict[str, Any]]) -> None:
        """On the leader: takes in what agents have sent, and names a rank that has become slow, once."""
        if not paces:
            return
        self._all += paces
        del self._all[:-HEARD]
        found = stragglers(self._all, self._plan.train.straggler_factor, self._plan.train.straggler_time)
        for each in found:
            if each.until is None and each.rank not in self._named:
                self._named.add(each.rank)
                self._name(each)

    def _name(self, straggler: Straggler) -> None:
        self._events(
            SlowRank(
                round=self._round, rank=straggler.rank, host=straggler.host, ratio=straggler.ratio,
                since=straggler.since,
            )
        )  # fmt: skip
        log_line(straggler.words)
