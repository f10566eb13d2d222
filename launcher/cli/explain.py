"""`why`: explains why a run waits, or is in its present state. `post-mortem`: why it ended, and what to do."""

from __future__ import annotations

import json
import time
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from launcher.cli.text import cause, labelled, print_unreadable, program, table
from launcher.diagnose import findings
from launcher.diagnose.findings import restarts
from launcher.diagnose.why import as_json, explain, of_why
from launcher.errors import DONE, FAILED, RunError
from launcher.failures.symptoms import EndKind
from launcher.failures.text import of_unused_gpus
from launcher.formatting import clean, name_ranks, rough_size
from launcher.monitoring.run_status import DamagedRun, JobMonitor, or_damaged, status_of
from launcher.runs.health import unused_gpus
from launcher.runs.lookup import find

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from launcher.diagnose.findings import EndedAttempt, Findings
    from launcher.monitoring.run_status import RunStatus
    from launcher.runs.directory import Attempt, Run
    from launcher.schedulers.pending import Explanation, Option


def why(arguments: Namespace) -> int:
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
            lines += labelled("" if name == last else f"  {name}", text, column=10)
            last = name
    if found.tried:
        lines += ["", *_table(found, now)]
    if found.commands:
        lines += ["", "Smallest change that starts clearly sooner (its place in the queue is lost):"]
        lines += [f"  {command}" for command in found.commands]
    elif found.tried and not found.options:
        lines += ["", "No change that was tried starts clearly sooner."]
    for note in found.notes:
        lines += labelled("  note", note, column=10)
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


def _table(found: Explanation, now: float) -> list[str]:
    rows = [("as it is" if not each.overrides else " ".join(each.overrides), _start(each, now), each.note)
            for each in found.tried]  # fmt: skip
    lines = table([("CHANGE", "WOULD START", "NOTE"), *rows], wraps=2, indent=2)
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


# -- `post-mortem`


def post_mortem(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    examined = or_damaged(found, lambda: _examine(found, arguments))
    if isinstance(examined, DamagedRun):
        raise RunError(examined.message)
    code, lines = examined
    print("\n".join(lines))  # here, since an output that cannot be written is no damage of the run
    if not arguments.as_json:
        print_unreadable(found)
    return code


def _reference(run: Run) -> str:
    # Names a run for later commands: by its id if the default folder has the run, else by its directory
    try:
        return run.id if find(run.id, None) == run else str(run.path)
    except RunError:
        return str(run.path)


def _examine(found: Run, arguments: Namespace) -> tuple[int, list[str]]:
    seen, name = status_of(found, JobMonitor()), _reference(found)
    attempts, over = found.attempts(), seen.state.over
    examined = None
    if arguments.attempt is not None:
        chosen = _chosen(seen, attempts, arguments.attempt)
        following = dict(findings.ended(seen))
        over = chosen in following
        if over:
            examined = findings.find(seen, chosen, following[chosen], name=name, program=program())
    elif over and seen.state.value != "done":
        examined = findings.find(seen, attempts[-1] if attempts else None, None, name=name, program=program())
    ended = findings.verdicts(seen)
    code = DONE if over else FAILED
    if arguments.as_json:
        return code, [json.dumps(_as_dict(seen, examined, ended), indent=1)]
    several = len(ended) > 1 or (ended and not seen.state.over)
    lines = _of(seen, examined) if examined is not None else _nothing(seen, program(), name)
    return code, [*(_of_attempts(ended) if several else ()), *lines]


def _chosen(seen: RunStatus, attempts: list[Attempt], number: int) -> Attempt:
    for each in attempts:
        if each.number == number:
            return each
    there = f"its attempts are 0 to {attempts[-1].number}" if attempts else "it has had none yet"
    raise RunError(f"{seen.run.id} has no attempt {number}: {there}")


def _as_dict(seen: RunStatus, examined: Findings | None, ended: list[EndedAttempt]) -> dict[str, Any]:
    return {
        "run": seen.run.id, "state": seen.state.value, "over": seen.state.over, "directory": str(seen.run.path),
        "attempts": [
            {"attempt": attempt.number, "kind": verdict.kind.value, "cause": verdict.cause, **codes}
            for attempt, verdict, codes in ended
        ],
        "verdict": examined.as_dict() if examined else None,
        "unused_gpus": [each.host for each in unused_gpus(seen.history.events)],
    }  # fmt: skip


def _of_attempts(ended: list[EndedAttempt]) -> Iterator[str]:
    for attempt, verdict, _ in ended:
        yield from labelled(
            f"attempt {attempt.number}", f"{verdict.kind.value}" + (f": {verdict.cause}" if verdict.cause else "")
        )
    yield ""


def _nothing(seen: RunStatus, program: str, name: str) -> Iterator[str]:
    if seen.state.value == "done":
        yield f"{seen.run.id} is done: there is no cause to look for"
        for place, line in enumerate(restarts(seen.history.events), 1):
            yield from labelled("before", f"round {place} began because {line}")
        for each in unused_gpus(seen.history.events):
            yield from labelled("gpus", of_unused_gpus(each))
        return
    where = f"{program} why {name}" if seen.state.value == "queued" else f"{program} status {name}"
    yield f"{seen.run.id} is not over: it is {seen.state.value}" + (f" ({seen.job.text})" if seen.job.text else "")
    yield f"see {where}"


def _of(seen: RunStatus, examined: Findings) -> Iterator[str]:
    verdict = examined.verdict
    number = f", attempt {examined.attempt}" if examined.attempt else ""
    yield f"{seen.run.id}{number}: {'' if verdict.sure else 'probably '}{verdict.kind.label}\n"
    yield from labelled(
        "cause", verdict.cause or ("nothing failed" if verdict.kind is EndKind.DONE else "no cause is known")
    )
    yield from labelled("kind", verdict.kind.value)
    if verdict.sign and verdict.sign not in (verdict.cause or ""):
        yield from labelled("sign", verdict.sign)
    if examined.rank is not None:
        yield from labelled(
            "first", f"rank {examined.rank}" + (f" on {examined.host}" if examined.host else "") + _at(examined.time)
        )
    elif examined.time is not None:
        yield from labelled("when", ((f"on {examined.host}" if examined.host else "") + _at(examined.time)).strip())
    if examined.same:
        yield from labelled("others", f"{name_ranks(examined.same)} had the same error")
    for rank, line in list(examined.others.items())[:4]:
        yield from labelled("others", f"rank {rank} had another error: {line}")
    if examined.followed:
        yield from labelled("others", f"{name_ranks(examined.followed)} only followed")
    if examined.by:
        yield from labelled("by", examined.by)
    for place, line in enumerate(examined.restarts, 1):
        yield from labelled("before", f"round {place} began because {line}")
    for each in unused_gpus(seen.history.events) if examined.attempt == seen.history.attempt else ():
        yield from labelled("gpus", of_unused_gpus(each))
    if examined.memory and verdict.kind in (EndKind.OUT_OF_MEMORY, EndKind.KILLED):
        shown = [f"{name} {rough_size(size)}" for name, size in examined.memory.items() if "kills" not in name]
        kills = [
            f"{name.replace('_', ' of the ')} {count}" for name, count in examined.memory.items() if "kills" in name
        ]
        yield from labelled("memory", ", ".join([*shown, *kills]))
    for place, step in enumerate(examined.todo):
        yield from labelled("" if place else "to do", step.words + (":" if step.command else ""))
        if step.command:  # not wrapped, so that it can be copied
            yield f"{'':<13}{step.command}"
    for head, path in examined.files.items():
        yield f"{head:<11}{path}"  # not shortened, so that it can be copied
    if examined.traceback and "\n" in examined.traceback:
        yield f"\nTraceback of rank {examined.rank}:\n{clean(examined.traceback)}"
    if examined.log:
        yield f"\nLast output of rank {examined.rank}:"
        for line in examined.log:
            yield f"  {clean(line)}"
    for stack in examined.stacks:
        yield f"\nStack of {name_ranks(stack.ranks)}, the newest frame first:"
        for frame in stack.frames:
            yield f"  {clean(frame)}"


def _at(time: float | None) -> str:
    return "" if time is None else f" at {datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S}"
