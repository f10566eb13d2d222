"""Groups equal stacks of many ranks, so that each is shown once, as a traceback. Pure, except that it reads sources."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.formatting import name_ranks, ranges

_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_WORKLOAD_CALLER = "_run_workload"  # function that calls a rank's workload; see launcher/worker/main.py
_PROGRAM_RUNNERS = ("/launcher/worker/script.py", "<frozen runpy>", "/runpy.py")  # files that run a user's program
STATES = {"D": "waits for a device or a file server (state D)", "T": "is stopped (state T)", "": "is gone"}


@dataclass(frozen=True)
class Frame:
    """One call in a stack."""

    path: str  # source file
    line: int  # line in the file; 0: unknown
    name: str  # name of the function


DEBUGGER = Frame("", 0, "the debugger, which waits for `attach --debug`")


@dataclass(frozen=True)
class Group:
    """Ranks whose main threads have the same stack."""

    # stack report of each of these ranks; see `RequestHandler._stacks` in attach/request_handler.py
    ranks: tuple[Mapping[str, Any], ...]
    frames: tuple[Frame, ...]  # frames of the main thread, innermost call last; empty: the ranks wrote no stack
    threads: tuple[int, ...]  # for each of these ranks, the number of its threads besides the main thread


def parse(text: str) -> tuple[tuple[Frame, ...], int]:
    """Parses the stacks of a process.

    text: output of faulthandler, which writes the innermost frame first, and the main thread last.
    Returns the frames of the main thread, innermost last, without the launcher's frames that call the user's code and
        with one DEBUGGER frame for those of pdb; and the number of other threads. No frames and 0 for an empty text.
    """
    threads = [thread for thread in re.split(r"\n\s*\n", text.strip()) if thread]
    if not threads:
        return (), 0
    found = [match for line in threads[-1].splitlines() if (match := _FRAME.match(line))]
    frames = [Frame(m["path"], int(m["line"]) if m["line"].isdecimal() else 0, m["name"]) for m in found][::-1]
    ours = [place for place, frame in enumerate(frames[:-1]) if _is_launcher_frame(frame)]
    frames = frames[ours[-1] + 1 :] if ours else frames
    for number, frame in enumerate(frames):
        if frame.path.endswith("/bdb.py") and number:
            frames = [*frames[:number], DEBUGGER]
            break
    return tuple(frames), len(threads) - 1


def _is_launcher_frame(frame: Frame) -> bool:
    return frame.name == _WORKLOAD_CALLER or frame.path.endswith(_PROGRAM_RUNNERS)


def group(reports: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Groups the stack reports of ranks by equal stacks. The smallest groups come first: they probably cause a hang."""
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
