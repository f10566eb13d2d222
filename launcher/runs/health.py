"""What events tell of the health of nodes and ranks: preflights, and ranks that are slower than the others. Pure.

Works without torch: `status` and the report page use it.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.failures.codes import PreflightThen
from launcher.formatting import plural
from launcher.runs.events import Pace, Preflighted, every

LEAST = 5e-4  # seconds by which a slow rank's step is longer than the others', at least
STALE = 300.0  # seconds after which what a rank has told does not count any more


def preflight_words(told: Preflighted) -> list[str]:
    """A preflight in lines: `preflight: 4 nodes fine in 1.2 s`, or one for each bad node; then its warnings."""
    fine = f"preflight: {plural(told.nodes, 'node')} fine in {told.seconds:.1f} s"
    lines = [fine] if told.then is PreflightThen.GO else []
    what = " is left out" if told.then is PreflightThen.WITHOUT else ""
    lines += [f"preflight: {each.name}{what}: {each.words}" for each in told.bad]
    return lines + [f"preflight: warning: {each.name}: {each.words}" for each in told.warnings]


def preflights(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of all preflights of an attempt, from its events."""
    return [line for event in every(events, Preflighted) for line in preflight_words(event)]


# -- ranks that are slower than the others


@dataclass(frozen=True)
class Straggler:
    """A rank that was slower than the others for some time.

    Attributes:
        rank, host: it.
        ratio: its time for a step, without waiting, to the median of the others'; median over that time.
        since: when that began, in seconds since the epoch.
        until: when it was over; None: it still was when it told last.
    """

    rank: int
    host: str
    ratio: float
    since: float
    until: float | None = None

    @property
    def words(self) -> str:
        """`rank 3 on node2 needs 1.8 times the others' time (since 12:03)`, in local time."""
        since = _clock(self.since)
        if self.until is None:
            return f"rank {self.rank} on {self.host} needs {self.ratio:.1f} times the others' time (since {since})"
        over = f"from {since} to {_clock(self.until)}"
        return f"rank {self.rank} on {self.host} needed {self.ratio:.1f} times the others' time ({over})"


def stragglers(
    events: Iterable[Mapping[str, Any]], factor: float, patience: float, *, over: bool = False
) -> list[Straggler]:
    """The ranks that needed `factor` times the others' time for `patience` seconds, by time.

    A rank's time is compared, whenever it tells one, with the median of what all others have told last. A difference
    of less than LEAST seconds does not count, nor what was told more than STALE seconds ago. It is over when a rank
    has been as fast as the others twice in a row: a single word may be an accident.

    Args:
        events: `pace` of all agents, by time (`Attempt.paces`); others are passed over. Each has `round`, `host`,
            `rank` (of the first) and `seconds` (of each rank; None: it told nothing, as is 0).
        factor: more than 1.
        patience: seconds.
        over: the ranks have ended.
    """
    found: list[Straggler] = []
    slow: dict[int, _Slow] = {}
    latest: dict[int, tuple[float, float]] = {}  # by rank: its time for a step, and when it was told
    order: list[float] = []  # the former, sorted
    current = -1
    for event in events:
        if event["event"] != Pace.event or event["round"] < current:
            continue
        if event["round"] > current:  # other ranks, other neighbours
            found += [each for one in slow.values() for each in one.told(factor, patience, one.last)]
            current, slow, latest, order = event["round"], {}, {}, []
        now = float(event["time"])
        told = {event["rank"] + place: value for place, value in enumerate(event["seconds"]) if value and value > 0}
        stale = [rank for rank, (took, then) in latest.items() if now - then > max(STALE, 4 * took)]
        for rank in {*stale, *(told.keys() & latest.keys())}:
            del order[bisect_left(order, latest.pop(rank)[0])]
        for rank, value in told.items():
            latest[rank] = value, now
            insort(order, value)
        for rank, value in told.items():
            if len(order) < 2:
                continue
            others = _median_without(order, value)
            is_slow = value >= factor * others and value - others >= LEAST
            if is_slow or rank in slow:
                one = slow.setdefault(rank, _Slow(rank, event["host"], now))
                one.tell(now, value / others, is_slow)
                if one.fast == 2:
                    found += slow.pop(rank).told(factor, patience, one.last)
    for one in slow.values():
        found += one.told(factor, patience, one.last if over else None)
    return sorted(found, key=lambda each: (each.since, each.rank))


class _Slow:
    """A rank while it is slow: since when, when last, the ratios told, and how many of the newest are fast again."""

    def __init__(self, rank: int, host: str, since: float) -> None:
        self.rank, self.host, self.since, self.last = rank, host, since, since
        self.ratios: list[float] = []
        self.fast = 0

    def tell(self, now: float, ratio: float, is_slow: bool) -> None:
        self.ratios.append(ratio)
        self.fast = 0 if is_slow else self.fast + 1
        if is_slow:
            self.last = now

    def told(self, factor: float, patience: float, until: float | None) -> list[Straggler]:
        """The straggler that it is; none if it was not slow for long enough, or often enough."""
        ratio = statistics.median(self.ratios)
        if self.last - self.since < patience or ratio < factor:
            return []
        return [Straggler(self.rank, self.host, round(ratio, 2), self.since, until)]


def _median_without(order: Sequence[float], value: float) -> float:
    """The median of sorted values without one of them."""
    place, count = bisect_left(order, value), len(order) - 1
    low, high = ((count - 1) // 2, count // 2)
    return (order[low + (low >= place)] + order[high + (high >= place)]) / 2


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))
