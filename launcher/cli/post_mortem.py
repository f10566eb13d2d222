"""`post-mortem`: why a run ended, which rank failed first, and what to do: the layout of what `diagnose` finds."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from launcher.cli.output import labelled, print_unreadable, program
from launcher.diagnose import findings
from launcher.diagnose.findings import EndedAttempt, restarts
from launcher.errors import DONE, FAILED, RunError
from launcher.failures.codes import EndKind
from launcher.failures.messages import of_unused_gpus
from launcher.formatting import clean, name_ranks, ranges, rough_size
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunStatus, or_damaged, status_of
from launcher.runs.directory import Run
from launcher.runs.health import unused_gpus
from launcher.runs.lookup import find


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
        chosen = next((each for each in attempts if each.number == arguments.attempt), None)
        if chosen is None:
            there = f", only {ranges(each.number for each in attempts)}" if attempts else ": it has had none yet"
            raise RunError(f"{found.id} has no attempt {arguments.attempt}{there}")
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
    lines = list[str]()
    for each in ended if len(ended) > 1 or not seen.state.over else ():
        why = f": {each.verdict.cause}" if each.verdict.cause else ""
        lines += labelled(f"attempt {each.attempt.number}", f"{each.verdict.kind.value}{why}")
    lines += [""] if lines else []
    return code, [*lines, *(_nothing(seen, program(), name) if examined is None else _of(seen, examined))]


def _as_dict(seen: RunStatus, examined: dict[str, Any] | None, ended: list[EndedAttempt]) -> dict[str, Any]:
    return {
        "run": seen.run.id, "state": seen.state.value, "over": seen.state.over, "directory": str(seen.run.path),
        "attempts": [
            {"attempt": each.attempt.number, "kind": each.verdict.kind.value, "cause": each.verdict.cause, **each.codes}
            for each in ended
        ],
        "verdict": examined,
        "unused_gpus": [each.host for each in unused_gpus(seen.history.events)],
    }  # fmt: skip


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


def _of(seen: RunStatus, examined: Mapping[str, Any]) -> Iterator[str]:
    kind, cause, memory = EndKind(examined["kind"]), examined["cause"], examined["memory"]
    number = f", attempt {examined['attempt']}" if examined["attempt"] else ""
    yield f"{seen.run.id}{number}: {'' if examined['sure'] else 'probably '}{kind.label}\n"
    unknown = "nothing failed" if kind is EndKind.DONE else "no cause is known"
    yield from labelled("cause", cause or unknown)
    yield from labelled("kind", kind.value)
    if examined["sign"] and examined["sign"] not in (cause or ""):
        yield from labelled("sign", examined["sign"])
    where = f" on {examined['host']}" if examined["host"] else ""
    if examined["time"] is not None:
        where += f" at {datetime.fromtimestamp(examined['time']).astimezone():%Y-%m-%d %H:%M:%S}"
    if examined["rank"] is not None:
        yield from labelled("first", f"rank {examined['rank']}{where}")
    elif examined["time"] is not None:
        yield from labelled("when", where.strip())
    if examined["same"]:
        yield from labelled("others", f"{name_ranks(examined['same'])} had the same kind of error")
    for rank, line in list(examined["others"].items())[:4]:
        yield from labelled("others", f"rank {rank} had another error: {line}")
    if examined["followed"]:
        yield from labelled("others", f"{name_ranks(examined['followed'])} only followed")
    if examined["cancelled_by"]:
        yield from labelled("by", examined["cancelled_by"])
    for place, line in enumerate(examined["restarts"], 1):
        yield from labelled("before", f"round {place} began because {line}")
    for each in unused_gpus(seen.history.events) if examined["attempt"] == seen.history.attempt else ():
        yield from labelled("gpus", of_unused_gpus(each))
    if memory and kind in (EndKind.OUT_OF_MEMORY, EndKind.KILLED):
        shown = [f"{name} {rough_size(size)}" for name, size in memory.items() if "kills" not in name]
        shown += [f"{name.replace('_', ' of the ')} {n}" for name, n in memory.items() if "kills" in name]
        yield from labelled("memory", ", ".join(shown))
    for place, step in enumerate(examined["todo"]):
        yield from labelled("" if place else "to do", step["words"] + (":" if step["command"] else ""))
        if step["command"]:  # not wrapped, so that it can be copied
            yield f"{'':<13}{step['command']}"
    for head, path in examined["files"].items():
        yield f"{head:<11}{path}"  # not shortened, so that it can be copied
    if "\n" in (examined["traceback"] or ""):
        yield f"\nTraceback of rank {examined['rank']}:\n{clean(examined['traceback'])}"
    if examined["log"]:
        yield f"\nLast output of rank {examined['rank']}:"
        for line in examined["log"]:
            yield f"  {clean(line)}"
    for stack in examined["stacks"]:
        yield f"\nStack of {name_ranks(stack['ranks'])}, the newest frame first:"
        for frame in stack["frames"]:
            yield f"  {clean(frame)}"
