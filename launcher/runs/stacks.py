"""Stacks of many ranks as a reader wants them: equal ones once, each as a traceback. Pure, but for the source lines."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.formatting import name_ranks, ranges

_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_CALLS = "_run_workload"  # a rank's workload is called by this; see launcher/worker/main.py
_RUNS = ("/launcher/worker/script.py", "<frozen runpy>", "/runpy.py")  # a program is run by these
STATES = {"D": "waits for a device or a file server (state D)", "T": "is stopped (state T)", "": "is gone"}


@dataclass(frozen=True)
class Frame:
    """One call: where it is, and in what."""

    path: str
    line: int
    name: str


DEBUGGER = Frame("", 0, "the debugger, which waits for `attach --debug`")


@dataclass(frozen=True)
class Group:
    """Ranks that are at the same place.

    Attributes:
        ranks: their reports; see `RequestHandler._stacks` in attach/request_handler.py.
        frames: of their main thread, the newest last; empty: they wrote none.
        threads: how many other threads each has.
    """

    ranks: tuple[Mapping[str, Any], ...]
    frames: tuple[Frame, ...]
    threads: tuple[int, ...]


def parse(text: str) -> tuple[tuple[Frame, ...], int]:
    """The main thread's frames, the newest last and from the workload on, and how many other threads there are.

    faulthandler writes the newest frame first and the main thread last.
    """
    threads = [thread for thread in re.split(r"\n\s*\n", text.strip()) if thread]
    if not threads:
        return (), 0
    found = [match for line in threads[-1].splitlines() if (match := _FRAME.match(line))]
    frames = [Frame(m["path"], int(m["line"]) if m["line"].isdecimal() else 0, m["name"]) for m in found][::-1]
    ours = [place for place, frame in enumerate(frames[:-1]) if _is_ours(frame)]
    frames = frames[ours[-1] + 1 :] if ours else frames
    for number, frame in enumerate(frames):
        if frame.path.endswith("/bdb.py") and number:
            frames = [*frames[:number], DEBUGGER]
            break
    return tuple(frames), len(threads) - 1


def _is_ours(frame: Frame) -> bool:
    """Whether it only calls what the user wants to see."""
    return frame.name == _CALLS or frame.path.endswith(_RUNS)


def group(reports: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The ranks by where they are: the smallest groups first, for they are what one looks for."""
    ranks: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], int]]] = {}
    for report in sorted(reports, key=lambda each: int(each["rank"])):
        frames, threads = parse(report["stack"])
        ranks.setdefault((frames, "" if frames else report["state"]), []).append((report, threads))
    groups = [
        Group(tuple(report for report, _ in each), key[0], tuple(threads for _, threads in each))
        for key, each in ranks.items()
    ]
    return sorted(groups, key=lambda each: (len(each.ranks), each.ranks[0]["rank"]))


def lines(group: Group) -> list[str]:
    """A group as text."""
    ranks = group.ranks
    hosts = ", ".join(dict.fromkeys(str(each["host"]) for each in ranks))
    where = f"on {hosts}"
    if len(ranks) == 1 and ranks[0]["pid"]:  # none of one that has ended
        where += f", process {ranks[0]['pid']}"
    steps = sorted({int(each["step"]) for each in ranks if each["step"] >= 0})
    if steps:
        where += f", after step {ranges(steps)}"
    head = f"{name_ranks(int(each['rank']) for each in ranks)} {where}"
    if not group.frames:
        words = STATES.get(ranks[0]["state"], f"wrote none (state {ranks[0]['state']})")
        return [f"{head}: no stack; its process {words}"]
    told = [f"{head}:"]
    for frame in group.frames:
        if frame is DEBUGGER:
            told.append(f"  in {frame.name}")
            continue
        told.append(f'  File "{frame.path}", line {frame.line}, in {frame.name}')
        if source := linecache.getline(frame.path, frame.line).strip():
            told.append(f"    {source}")
    return told
