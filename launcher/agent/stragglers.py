"""Step times of ranks: each agent writes them to the attempt's directory `pace`, and sends them to the leader.

The leader reports each slow rank once. Commands find the same ranks with `launcher.runs.health.stragglers`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from launcher.log_line import log_line
from launcher.rendezvous.rounds import Rendezvous
from launcher.runs import directory, event_file
from launcher.runs.event_writer import Events
from launcher.runs.events import Pace, SlowRank
from launcher.runs.health import Straggler, StragglerSearch
from launcher.spec.plan import JobPlan

FIRST, MOST = 10.0, 60.0  # shortest and longest seconds between two Pace events of an agent
SHARE = 0.01  # within these bounds, the interval as a share of the time since the round started


def interval(age: float, straggler_time: float) -> float:
    """Returns the seconds between two Pace events of an agent.

    age: seconds since the round started.
    straggler_time: train.straggler_time in seconds, which has to contain several events.
    """
    return min(max(min(FIRST, straggler_time / 4), SHARE * age), MOST, max(straggler_time, 1.0))


class Paces:
    """Writes and judges the step times of one agent's ranks in one round."""

    def __init__(
        self,
        plan: JobPlan,
        attempt: directory.Attempt,
        events: Events,
        rendezvous: Rendezvous,
        index: int,
        round_number: int,
    ) -> None:
        """index: index of this agent in `rendezvous.members`.
        round_number: index of the round, from 0.
        """
        self._plan, self._events, self._round = plan, events, round_number
        self._own, self._first_rank = rendezvous.members[index], rendezvous.first_rank(index)
        self._file = attempt.path / "pace" / f"member-{self._own.index}.jsonl"
        self._began = time.monotonic()
        self._next = 0.0
        self._steps = [0] * self._own.ranks
        self._seconds: list[list[float]] = [[] for _ in range(self._own.ranks)]
        self._search = StragglerSearch(plan.train.straggler_factor, plan.train.straggler_time)
        self._named: set[int] = set()

    def look(self, paces: Sequence[tuple[float, int]], now: float) -> dict[str, Any] | None:
        """Adds step times. If a Pace event is due, writes the event and returns it for the leader; else returns None.

        paces: the step time and step count of each rank of this agent, see `Pulse.paces`.
        now: monotonic seconds.
        """
        for place, (seconds, steps) in enumerate(paces):
            if steps > self._steps[place]:
                self._steps[place] = steps
                self._seconds[place].append(seconds)
        if now < self._next or not any(self._seconds):
            return None
        self._next = now + interval(now - self._began, self._plan.train.straggler_time)
        pace = Pace(
            time=time.time(), round=self._round, rank=self._first_rank, host=self._own.host,
            seconds=tuple(float(f"{statistics.median(each):.4g}") if each else None for each in self._seconds),
        )  # fmt: skip
        self._seconds = [[] for _ in self._seconds]
        with contextlib.suppress(OSError):  # a full disk: training does not need the file
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            event_file.append(self._file, pace)
        return event_file.entry(pace)

    def judge(self, paces: Sequence[dict[str, Any]]) -> None:
        """On the leader: takes Pace events of all agents, and reports each rank that has become slow, once."""
        for each in chain.from_iterable(map(self._search.add, paces)):
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
