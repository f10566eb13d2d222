"""What the events of a run tell of its nodes: their health, the bindings of ranks, and stacks."""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.binding import masks
from launcher.binding.hardware import Node
from launcher.failures.codes import PreflightThen, Unbound
from launcher.failures.messages import first_of, of_unused_gpus
from launcher.fast_dataclasses import replace
from launcher.formatting import name_ranks, plural, ranges
from launcher.runs import events
from launcher.runs.events import Bound, BoundRank, GpusUnused, Preflighted, every


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
_PROGRAM_RUNNERS = ("/launcher/worker/user_script.py", "<frozen runpy>", "/runpy.py")  # files that run a user's program
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


# -- Describes preflight results, and GPUs that are not used


def preflight_lines(result: Preflighted) -> list[str]:
    """Returns a preflight's result as lines: `preflight: 4 nodes fine in 1.2 s`, bad nodes, warnings."""
    fine = f"preflight: {plural(result.nodes, 'node')} fine in {result.seconds:.1f} s"
    lines = [fine] if result.then is PreflightThen.GO else []
    what = " is left out" if result.then is PreflightThen.WITHOUT else ""
    lines += [f"preflight: {each.name}{what}: {each.found.text}" for each in result.bad]
    return lines + [f"preflight: warning: {each.name}: {each.found.text}" for each in result.warnings]


def remarks(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines about the events of an attempt: its preflights, and GPUs that are not used."""
    lines = [line for event in every(events, Preflighted) for line in preflight_lines(event)]
    return lines + unused_gpu_lines(events)


def unused_gpu_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the line that some ranks have opened no GPU, with the ranks of all nodes; none if all have."""
    if not (found := unused_gpus(events)):
        return []
    hosts, ranks = first_of([each.host for each in found]), tuple(rank for each in found for rank in each.ranks)
    return [of_unused_gpus(replace(found[0], host=hosts, ranks=ranks, seconds=min(each.seconds for each in found)))]


def unused_gpus(events: Iterable[Mapping[str, Any]]) -> list[GpusUnused]:
    """Returns the last event of each host and its ranks that says that they have opened no GPU."""
    newest = {(each.host, each.ranks): each for each in every(events, GpusUnused)}
    return [each for each in newest.values() if not each.opened]
