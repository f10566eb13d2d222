"""What the events of a run tell of its nodes: their health, the bindings of ranks, and stacks."""

from __future__ import annotations

import linecache
import re
import statistics
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.binding import masks
from launcher.binding.hardware import Node
from launcher.failures.codes import PreflightThen, Unbound
from launcher.failures.text import of_unused_gpus
from launcher.formatting import name_ranks, plural, ranges
from launcher.runs import events
from launcher.runs.events import Bound, BoundRank, GpusUnused, Pace, Preflighted, every


def bindings_event(
    host: str, node: Node, allowed: Collection[int], found: Sequence[masks.RankBinding], *, first_rank: int = 0,
    round_number: int = 0, unbound: Unbound | None = None,
) -> Bound:  # fmt: skip
    numas: dict[str, list[int]] = {}
    for core in node.cores:
        numas.setdefault(str(core.numa), []).extend(core.cpus)
    return Bound(
        host=host, round=round_number, node=node.kind, allowed=ranges(sorted(allowed)), unbound=unbound,
        numas={numa: ranges(sorted(cpus)) for numa, cpus in sorted(numas.items(), key=lambda each: int(each[0]))},
        ranks=tuple(_rank(first_rank + place, bound) for place, bound in enumerate(found)),
    )  # fmt: skip


def _rank(rank: int, bound: masks.RankBinding) -> BoundRank:
    gpu, nic = bound.devices.gpu, bound.devices.nic
    return BoundRank(
        rank, ranges(bound.cpus), bound.cores, ranges(bound.numa), gpu.name if gpu else None,
        gpu.numa if gpu else None, nic.name if nic else None,
    )  # fmt: skip


def latest_bindings(entries: Iterable[Mapping[str, Any]]) -> list[Bound]:
    """Returns the `Bound` events of an attempt's last round, one per agent, in the order of their ranks."""
    found = events.every(entries, Bound)
    last = max((each.round for each in found), default=0)
    return sorted((each for each in found if each.round == last and each.ranks), key=lambda each: each.ranks[0].rank)


def differing_bindings(bindings: Sequence[Bound]) -> str:
    """Returns text such as `the nodes differ: TYPE on a, b; TYPE on c`; empty if all nodes are of the same type."""
    hosts: dict[str, list[str]] = {}
    for each in bindings:
        hosts.setdefault(each.node, []).append(each.host)
    if len(hosts) < 2:
        return ""
    most = sorted(hosts.items(), key=lambda each: -len(each[1]))
    parts = [f"{node or 'unknown'} on {', '.join(names[:4])}{' and more' if names[4:] else ''}" for node, names in most]
    return f"the nodes differ: {'; '.join(parts)}"


# -- Groups equal stacks of many ranks, so that each is shown once, as a traceback. Pure, except that it reads sources


_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_WORKLOAD_CALLER = "_run_workload"  # function that calls a rank's workload; see launcher/worker/main.py
_PROGRAM_RUNNERS = ("/launcher/worker/script.py", "<frozen runpy>", "/runpy.py")  # files that run a user's program
STATES = {"D": "waits for a device or a file server (state D)", "T": "is stopped (state T)", "": "is gone"}


@dataclass(frozen=True)
class Frame:
    path: str  # source file
    line: int  # line in the file; 0: unknown
    name: str  # name of the function


DEBUGGER = Frame("", 0, "the debugger, which waits for `attach --debug`")


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[Mapping[str, Any], ...]  # their reports: see `RequestHandler._stacks` in launcher/attach.py
    frames: tuple[Frame, ...]  # frames of the main thread, innermost call last; empty: the ranks wrote no stack
    threads: tuple[int, ...]  # for each of these ranks, the number of its threads besides the main thread


def parse_stacks(text: str) -> tuple[tuple[Frame, ...], int]:
    """Parses faulthandler's output (innermost frame first, main thread last).

    Returns the frames of the main thread, innermost last, without the launcher's frames that call the user's code and
    with one DEBUGGER frame for those of pdb; and the number of other threads. No frames and 0 for an empty text.
    """
    threads = [thread for thread in re.split(r"\n\s*\n", text.strip()) if thread]
    if not threads:
        return (), 0
    found = [match for line in threads[-1].splitlines() if (match := _FRAME.match(line))]
    frames = [Frame(m["path"], int(m["line"]) if m["line"].isdecimal() else 0, m["name"]) for m in found][::-1]
    ours = [
        place for place, frame in enumerate(frames[:-1])
        if frame.name == _WORKLOAD_CALLER or frame.path.endswith(_PROGRAM_RUNNERS)
    ]  # fmt: skip
    frames = frames[ours[-1] + 1 :] if ours else frames
    for number, frame in enumerate(frames):
        if frame.path.endswith("/bdb.py") and number:
            frames = [*frames[:number], DEBUGGER]
            break
    return tuple(frames), len(threads) - 1


def group_stacks(reports: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Groups the stack reports of ranks by equal stacks. The smallest groups come first: they probably cause a hang."""
    ranks: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], int]]] = {}
    for report in sorted(reports, key=lambda each: int(each["rank"])):
        frames, threads = parse_stacks(report["stack"])
        ranks.setdefault((frames, "" if frames else report["state"]), []).append((report, threads))
    groups = [
        Group(tuple(report for report, _ in each), key[0], tuple(threads for _, threads in each))
        for key, each in ranks.items()
    ]
    return sorted(groups, key=lambda each: (len(each.ranks), each.ranks[0]["rank"]))


def stack_lines(group: Group) -> list[str]:
    """Returns the text of a group for the user, as lines: ranks, host, process, step, then the stack."""
    ranks = group.ranks
    hosts = ", ".join(dict.fromkeys(str(each["host"]) for each in ranks))
    where = f"on {hosts}"
    if len(ranks) == 1 and ranks[0]["pid"]:  # 0: the process has ended
        where += f", process {ranks[0]['pid']}"
    steps = sorted({int(each["step"]) for each in ranks if each["step"] >= 0})
    if steps:
        where += f", after step {ranges(steps)}"
    head = f"{name_ranks(int(each['rank']) for each in ranks)} {where}"
    if not group.frames:
        words = STATES.get(ranks[0]["state"], f"wrote none (state {ranks[0]['state']})")
        return [f"{head}: no stack; its process {words}"]
    text = [f"{head}:"]
    for frame in group.frames:
        if frame is DEBUGGER:
            text.append(f"  in {frame.name}")
            continue
        text.append(f'  File "{frame.path}", line {frame.line}, in {frame.name}')
        if source := linecache.getline(frame.path, frame.line).strip():
            text.append(f"    {source}")
    return text


# -- Finds slow ranks (stragglers) in events, and describes preflight results. Pure, and without torch
#
# Agents use it while a run trains; `status` and the report page use it as well.


MIN_DIFFERENCE = 5e-4  # seconds by which a slow rank's step time must exceed that of the others
STALE_AFTER = 300.0  # seconds after which a reported step time no longer counts
RESORT = 8  # see StragglerSearch
RATIOS = 100  # newest reports of a slow period whose median is its ratio


def preflight_lines(result: Preflighted) -> list[str]:
    """Returns a preflight's result as lines: `preflight: 4 nodes fine in 1.2 s`, bad nodes, warnings."""
    fine = f"preflight: {plural(result.nodes, 'node')} fine in {result.seconds:.1f} s"
    lines = [fine] if result.then is PreflightThen.GO else []
    what = " is left out" if result.then is PreflightThen.WITHOUT else ""
    lines += [f"preflight: {each.name}{what}: {each.found.words}" for each in result.bad]
    return lines + [f"preflight: warning: {each.name}: {each.found.words}" for each in result.warnings]


def remarks(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines about the events of an attempt: its preflights, and GPUs that are not used."""
    lines = [line for event in every(events, Preflighted) for line in preflight_lines(event)]
    return lines + [of_unused_gpus(each) for each in unused_gpus(events)]


def unused_gpus(events: Iterable[Mapping[str, Any]]) -> list[GpusUnused]:
    """Returns the last event of each host and its ranks that says that they have opened no GPU."""
    newest = {(each.host, each.ranks): each for each in every(events, GpusUnused)}
    return [each for each in newest.values() if not each.opened]


# -- ranks that are slower than the others


@dataclass(frozen=True)
class Straggler:
    """A rank that was slower than the others for some time."""

    rank: int  # rank, host: the rank, and the name of its host
    host: str
    ratio: float  # its step time, without waiting, divided by the others' median: the median of the last RATIOS reports
    since: float  # start of the slow period, in seconds since the epoch
    until: float | None = None  # end of the slow period; None: the rank was slow in its last report

    @property
    def words(self) -> str:
        """Text for the user: `rank 3 on node2 needs 1.8 times the others' time (since 12:03)`, in local time."""
        since = _clock(self.since)
        if self.until is None:
            return f"rank {self.rank} on {self.host} needs {self.ratio:.1f} times the others' time (since {since})"
        over = f"from {since} to {_clock(self.until)}"
        return f"rank {self.rank} on {self.host} needed {self.ratio:.1f} times the others' time ({over})"


def stragglers(
    events: Iterable[Mapping[str, Any]], factor: float, min_seconds: float, *, over: bool = False
) -> list[Straggler]:
    """Returns the ranks that `StragglerSearch` finds in `pace` events (`Attempt.paces`), by start and rank.

    over: whether the ranks have ended, so that slow periods end with the last slow report.
    """
    search = StragglerSearch(factor, min_seconds)
    found = [each for event in events for each in search.add(event) if each.until is not None]
    return sorted([*found, *search.slow(over=over)], key=lambda each: (each.since, each.rank))


class StragglerSearch:
    """Finds the ranks with at least `factor` times the others' step time for `min_seconds`.

    Each report of a rank is compared with the median of the latest reports of all others. Differences of less than
    MIN_DIFFERENCE seconds and reports older than STALE_AFTER seconds are ignored. A slow period ends with two reports
    in a row in which the rank is as fast as the others, because a single one may be an accident.

    The step times are sorted again when 1/RESORT of them are new, so that the work per report does not grow with the
    number of ranks. Until then a report is compared with the median as it was; of few nodes that is never the case.
    """

    def __init__(self, factor: float, min_seconds: float) -> None:
        # `min_seconds`: shortest slow period that is returned
        self._factor, self._min_seconds = factor, min_seconds
        self._begin(-1)

    def _begin(self, number: int) -> None:
        self._round = number
        self._slow: dict[int, _Slow] = {}
        self._latest: dict[int, tuple[float, float]] = {}  # by rank: its step time, and when it was reported
        self._order: list[float] = []  # the step times in `_latest`, sorted at `_sorted`
        self._new, self._sorted = 0, 0.0

    def add(self, event: Mapping[str, Any]) -> list[Straggler]:
        """Adds an event. Returns the stragglers among its ranks, and those whose slow period has ended with it."""
        if event["event"] != Pace.event or event["round"] < self._round:
            return []
        found: list[Straggler] = []
        if event["round"] > self._round:  # the ranks of another round may be on other nodes
            found = self.slow(over=True)
            self._begin(event["round"])
        now = float(event["time"])
        times = {event["rank"] + place: value for place, value in enumerate(event["seconds"]) if value and value > 0}
        self._latest.update((rank, (value, now)) for rank, value in times.items())
        self._new += len(times)
        if self._new * RESORT >= len(self._latest) or now - self._sorted > STALE_AFTER / RESORT:
            self._sort(now)
        for rank, value in times.items():
            if len(self._order) < 2:
                continue
            others = _median_without(self._order, value)
            is_slow = value >= self._factor * others and value - others >= MIN_DIFFERENCE
            if is_slow or rank in self._slow:
                one = self._slow.setdefault(rank, _Slow(rank, event["host"], now))
                one.add(now, value / others, is_slow)
                ended = one.fast == 2
                found += one.as_stragglers(self._factor, self._min_seconds, one.last if ended else None)
                if ended:
                    del self._slow[rank]
        return found

    def slow(self, *, over: bool) -> list[Straggler]:
        """Returns the ranks that were slow in their last reports. `over`: see `stragglers`."""
        return [
            each
            for one in self._slow.values()
            for each in one.as_stragglers(self._factor, self._min_seconds, one.last if over else None)
        ]

    def _sort(self, now: float) -> None:
        self._latest = {
            rank: (took, then)
            for rank, (took, then) in self._latest.items()
            if now - then <= max(STALE_AFTER, 4 * took)
        }
        self._order = sorted(took for took, _ in self._latest.values())
        self._new, self._sorted = 0, now


class _Slow:
    # Ratios, and the number of fast reports since the last slow one

    def __init__(self, rank: int, host: str, since: float) -> None:
        self.rank, self.host, self.since, self.last = rank, host, since, since
        self.ratios: deque[float] = deque(maxlen=RATIOS)
        self.fast = 0

    def add(self, now: float, ratio: float, is_slow: bool) -> None:
        self.ratios.append(ratio)
        self.fast = 0 if is_slow else self.fast + 1
        if is_slow:
            self.last = now

    def as_stragglers(self, factor: float, min_seconds: float, until: float | None) -> list[Straggler]:
        if self.last - self.since < min_seconds or (ratio := statistics.median(self.ratios)) < factor:
            return []
        return [Straggler(self.rank, self.host, round(ratio, 2), self.since, until)]


def _median_without(order: Sequence[float], value: float) -> float:
    place, count = bisect_left(order, value), len(order) - 1
    low, high = ((count - 1) // 2, count // 2)
    return (order[low + (low >= place)] + order[high + (high >= place)]) / 2


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))
