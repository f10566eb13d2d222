"""`post-mortem`: shows why a run ended, which rank failed first, and what to do."""

from __future__ import annotations

import json
import textwrap
from datetime import datetime
from typing import TYPE_CHECKING, Any

from launcher.cli.find import find, reference
from launcher.cli.text import print_unreadable, program
from launcher.diagnose import findings
from launcher.diagnose.findings import restarts
from launcher.errors import DONE, FAILED, RunError
from launcher.failures.symptoms import EndKind
from launcher.failures.text import of_unused_gpus
from launcher.formatting import clean, name_ranks, rough_size
from launcher.monitoring.run_status import DamagedRun, JobMonitor, or_damaged, status_of
from launcher.runs.health import unused_gpus

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from launcher.diagnose.findings import EndedAttempt, Findings
    from launcher.monitoring.run_status import RunStatus
    from launcher.runs.directory import Attempt, Run

WIDTH = 80


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    examined = or_damaged(found, lambda: _examine(found, arguments))
    if isinstance(examined, DamagedRun):
        raise RunError(examined.message)
    code, lines = examined
    print("\n".join(lines))  # here, since an output that cannot be written is no damage of the run
    if not arguments.as_json:
        print_unreadable(found)
    return code


def _examine(found: Run, arguments: Namespace) -> tuple[int, list[str]]:
    seen, name = status_of(found, JobMonitor()), reference(found)
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
        yield _wrapped(
            f"attempt {attempt.number}", f"{verdict.kind.value}" + (f": {verdict.cause}" if verdict.cause else "")
        )
    yield ""


def _nothing(seen: RunStatus, program: str, name: str) -> Iterator[str]:
    if seen.state.value == "done":
        yield f"{seen.run.id} is done: there is no cause to look for"
        for place, line in enumerate(restarts(seen.history.events), 1):
            yield _wrapped("before", f"round {place} began because {line}")
        for each in unused_gpus(seen.history.events):
            yield _wrapped("gpus", of_unused_gpus(each))
        return
    where = f"{program} why {name}" if seen.state.value == "queued" else f"{program} status {name}"
    yield f"{seen.run.id} is not over: it is {seen.state.value}" + (f" ({seen.job.text})" if seen.job.text else "")
    yield f"see {where}"


def _of(seen: RunStatus, examined: Findings) -> Iterator[str]:
    verdict = examined.verdict
    number = f", attempt {examined.attempt}" if examined.attempt else ""
    yield f"{seen.run.id}{number}: {'' if verdict.sure else 'probably '}{verdict.kind.label}\n"
    yield _wrapped(
        "cause", verdict.cause or ("nothing failed" if verdict.kind is EndKind.DONE else "no cause is known")
    )
    yield _wrapped("kind", verdict.kind.value)
    if verdict.sign and verdict.sign not in (verdict.cause or ""):
        yield _wrapped("sign", verdict.sign)
    if examined.rank is not None:
        yield _wrapped(
            "first", f"rank {examined.rank}" + (f" on {examined.host}" if examined.host else "") + _at(examined.time)
        )
    elif examined.time is not None:
        yield _wrapped("when", ((f"on {examined.host}" if examined.host else "") + _at(examined.time)).strip())
    if examined.same:
        yield _wrapped("others", f"{name_ranks(examined.same)} had the same error")
    for rank, line in list(examined.others.items())[:4]:
        yield _wrapped("others", f"rank {rank} had another error: {line}")
    if examined.followed:
        yield _wrapped("others", f"{name_ranks(examined.followed)} only followed")
    if examined.by:
        yield _wrapped("by", examined.by)
    for place, line in enumerate(examined.restarts, 1):
        yield _wrapped("before", f"round {place} began because {line}")
    for each in unused_gpus(seen.history.events) if examined.attempt == seen.history.attempt else ():
        yield _wrapped("gpus", of_unused_gpus(each))
    if examined.memory and verdict.kind in (EndKind.OUT_OF_MEMORY, EndKind.KILLED):
        shown = [f"{name} {rough_size(size)}" for name, size in examined.memory.items() if "kills" not in name]
        kills = [
            f"{name.replace('_', ' of the ')} {count}" for name, count in examined.memory.items() if "kills" in name
        ]
        yield _wrapped("memory", ", ".join([*shown, *kills]))
    for place, step in enumerate(examined.todo):
        yield _wrapped("" if place else "to do", step.words + (":" if step.command else ""))
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


def _wrapped(head: str, text: str) -> str:
    # Long words, such as paths, are not broken
    return textwrap.fill(
        clean(text), WIDTH, initial_indent=f"{head:<11}", subsequent_indent=" " * 11, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
