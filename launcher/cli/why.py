"""`why`: explains why a run waits, or is in its present state."""

from __future__ import annotations

import json
import textwrap
import time
from itertools import chain
from typing import TYPE_CHECKING

from launcher.cli.find import find
from launcher.cli.text import cause, print_unreadable, program, table
from launcher.diagnose.why import as_json, explain, of_why

if TYPE_CHECKING:
    from argparse import Namespace

    from launcher.schedulers.pending import Explanation, Option

WIDTH = 79


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    explanation = explain(found, program(), cause)
    if arguments.as_json:
        print(json.dumps(as_json(explanation), indent=1))
        return 0
    print(shown(explanation, time.time()))
    print_unreadable(found)
    return 0


def shown(found: Explanation, now: float) -> str:
    """Formats an explanation for a terminal. now: the current time, in seconds since the epoch."""
    job = f", job {found.job}" if found.job and found.state == "queued" else ""
    lines = [f"{found.run}: {found.state}{job}"]
    rows = [("why", of_why(found)), ("reason", found.code), ("do", found.do)]
    if found.state == "queued":
        known = f"{moment(found.starts, now)}, says the scheduler" if found.starts else "the scheduler has no estimate"
        rows.insert(2, ("starts", known))
    rows += [("after", f"{each.id} is {each.state} (after={each.condition}:{each.id})") for each in found.awaited]
    rows += [("limit", text) for text in found.limits] + [("nodes", text) for text in found.nodes]
    last = ""
    for name, text in rows:
        if text:
            lines += _wrapped("" if name == last else name, text)
            last = name
    if found.tried:
        lines += ["", *_table(found, now)]
    if found.commands:
        lines += ["", "Smallest change that starts clearly sooner (its place in the queue is lost):"]
        lines += [f"  {command}" for command in found.commands]
    elif found.tried and not found.options:
        lines += ["", "No change that was tried starts clearly sooner."]
    for note in found.notes:
        lines += _wrapped("note", note)
    return "\n".join(lines)


def start_lines(found: Explanation, now: float) -> list[str]:
    """Returns when a run that was just submitted is estimated to start, and what would start sooner; [] if unknown."""
    if found.state != "queued":
        return []
    lines = []
    if found.starts:
        lines.append(f"start      {moment(found.starts, now)}, says the scheduler")
    elif found.tried and found.tried[0].starts:
        lines.append(f"start      {moment(found.tried[0].starts, now)}, as the queue is now")
    if found.options:
        best = found.options[0]
        change = f"{_start(best, now)} with {' '.join(best.overrides)}"
        lines.append(f"sooner     {change}: {program()} why {found.run}")
    return lines


def _wrapped(name: str, text: str) -> list[str]:
    # Commands in backquotes are long words that are not broken.
    body = textwrap.wrap(text, WIDTH - 10, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {name:<8}{line}" if number == 0 else f"  {'':<8}{line}" for number, line in enumerate(body)]


def _table(found: Explanation, now: float) -> list[str]:
    rows = [("as it is" if not each.overrides else " ".join(each.overrides), _start(each, now), each.note)
            for each in found.tried]  # fmt: skip
    lines = table([("CHANGE", "WOULD START", "NOTE"), *rows], wraps=2, width=WIDTH, indent=2)
    return list(chain.from_iterable(lines))


def _start(option: Option, now: float) -> str:
    return moment(option.starts, now) if option.starts is not None else "-"


def moment(starts: float, now: float) -> str:
    """Formats a start (both since the epoch) as `21:10 (in 12 min)`, with the date on another day; soon: `now`."""
    left = starts - now
    if left < 30:
        return "now"
    here, there = time.localtime(now), time.localtime(starts)
    same = here[:3] == there[:3]
    text = time.strftime("%H:%M" if same else "%a %d %b %H:%M", there)
    minutes = round(left / 60)
    if minutes < 90:
        return f"{text} (in {max(minutes, 1)} min)"
    return f"{text} (in {round(left / 3600)} h)" if left < 48 * 3600 else f"{text} (in {round(left / 86400)} days)"
