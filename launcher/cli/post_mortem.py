"""`post-mortem`: why a run ended, which rank failed first, its traceback, stacks and log lines, and what to do."""

from __future__ import annotations

import contextlib
import pwd
import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.cli.output import json_text, labelled, print_unreadable, program
from launcher.diagnose import verdict as known
from launcher.diagnose.advice import Case, advice
from launcher.diagnose.verdict import EndedAttempt
from launcher.errors import DONE, FAILED, RunError
from launcher.failures import known_errors, messages
from launcher.failures.codes import EndKind, FaultCode
from launcher.formatting import clean, cut, name_ranks, plural, ranges, rough_size
from launcher.monitoring.run_status import DamagedRun, JobMonitor, RunStatus, or_damaged, rerun, status_of
from launcher.plan.plan import JobPlan
from launcher.runs import user_checkpoints
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import Ended, Fault, Restart, Restored, Started, Stop, as_kind, first, last
from launcher.runs.history import unused_gpu_lines, unused_gpus
from launcher.runs.lookup import find
from launcher.runs.output_files import rank_files, rank_logs, start_of, tail

LAST_LINES = 10  # last lines of the failed rank's log that are shown
LONGEST_LINE = 500  # characters of each; --json has all of it
LOOK = 3.0  # seconds in which files that a program has saved are looked for
MOST_RESTARTS = 10  # newest ones of an attempt that are shown
MOST_STACKS = 20  # different ones of a hang that are shown
MOST_RANKS = 256  # at most so many other ranks' logs are searched for errors


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    examined = or_damaged(found, lambda: _examine(found, arguments))
    if isinstance(examined, DamagedRun):
        raise examined.error()
    code, lines = examined
    print("\n".join(lines))  # here, since an output that cannot be written is no damage of the run
    if not arguments.as_json:
        print_unreadable(found)
    return code


def _reference(run: Run) -> str:
    # Names a run for later commands: by its id if the default folder has the run, else by its directory, quoted
    with contextlib.suppress(RunError):
        if find(run.id, None) == run:
            return run.id
    return shlex.quote(str(run.path))


def _examine(found: Run, arguments: Namespace) -> tuple[int, list[str]]:
    seen, name = status_of(found, JobMonitor()), _reference(found)
    attempts, over = found.attempts(), seen.state.over
    examined = None
    if arguments.attempt is not None:
        chosen = next((each for each in attempts if each.number == arguments.attempt), None)
        if chosen is None:
            there = f", only {ranges(each.number for each in attempts)}" if attempts else ": it has had none yet"
            raise RunError(f"{found.id} has no attempt {arguments.attempt}{there}")
        following = dict(known.ended(seen))
        over = chosen in following
        if over:
            examined = findings_of(seen, chosen, following[chosen], name)
    elif over and seen.state.value != "done":
        examined = findings_of(seen, attempts[-1] if attempts else None, None, name)
    ended = known.verdicts(seen)
    code = DONE if over else FAILED
    if arguments.as_json:
        return code, [json_text(_as_dict(seen, examined, ended))]
    lines = list[str]()
    for each in ended if len(ended) > 1 or not seen.state.over else ():
        why = f": {each.verdict.cause}" if each.verdict.cause else ""
        lines += labelled(f"attempt {each.attempt.number}", f"{each.verdict.kind.value}{why}")
    lines += [""] if lines else []
    return code, [*lines, *(_nothing(seen, name) if examined is None else _of(seen, examined))]


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


def _nothing(seen: RunStatus, name: str) -> Iterator[str]:
    if seen.state.value == "done":
        yield f"{seen.run.id} is done: there is no cause to look for"
        yield from _before(restarts(seen.history.events))
        for line in unused_gpu_lines(seen.history.events):
            yield from labelled("gpus", line)
        return
    why = f" ({seen.job.text})" if seen.job.reason or seen.job.problem else ""
    yield f"{seen.run.id} is not over: it is {seen.state.value}{why}"
    yield f"see {program()} {'why' if seen.state.value == 'queued' else 'status'} {name}"


def _before(causes: Sequence[str]) -> Iterator[str]:
    earlier = max(0, len(causes) - MOST_RESTARTS)
    if earlier:
        yield from labelled("before", f"{plural(earlier, 'restart')} before these")
    for place, line in enumerate(causes[earlier:], earlier + 1):
        yield from labelled("before", f"round {place} began because {line}")


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
        yield from labelled("when", where.strip().removeprefix("at "))
    if examined["same"]:
        yield from labelled("others", f"{name_ranks(examined['same'])} had the same kind of error")
    for rank, line in list(examined["others"].items())[:4]:
        yield from labelled("others", f"rank {rank} had another error: {line}")
    if examined["followed"]:
        yield from labelled("others", f"{name_ranks(examined['followed'])} only followed")
    if examined["unsearched"]:
        yield from labelled("others", f"the logs of {plural(examined['unsearched'], 'further rank')} were not searched")
    if examined["cancelled_by"]:
        yield from labelled("by", examined["cancelled_by"])
    yield from _before(examined["restarts"])
    for line in unused_gpu_lines(seen.history.events) if examined["attempt"] == seen.history.attempt else ():
        yield from labelled("gpus", line)
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
            yield f"  {cut(clean(line), LONGEST_LINE)}"
    stacks = sorted(examined["stacks"], key=lambda stack: len(stack["ranks"]))  # a few ranks hold up all others
    for stack in stacks[:MOST_STACKS]:
        yield f"\nStack of {name_ranks(stack['ranks'])}, the newest frame first:"
        for frame in stack["frames"]:
            yield f"  {clean(frame)}"
    if len(stacks) > MOST_STACKS:
        yield f"\n... and {plural(len(stacks) - MOST_STACKS, 'other stack')}: see the files above, or --json"


# -- What is found of an attempt


def findings_of(seen: RunStatus, attempt: Attempt | None, following: Attempt | None, name: str) -> dict[str, Any]:
    """Returns what `post-mortem --json` prints of an attempt (None: the run had none); name: the run, for commands."""
    events = seen.history.events_of(attempt) if attempt else []
    started = first(events, Started)
    pasts = known.job_executions(seen, (started.job if started else None) if attempt else seen.history.job_id)
    if attempt is None:
        evidence = replace(known.evidence_of(seen), memory={})
    else:
        past = known.execution_of(pasts, attempt, last=following is None and seen.state.over)
        pasts = [past] if past else []
        evidence = known.evidence_of_attempt(seen, attempt, following, past, events)
    verdict, event = known.classify(evidence), evidence.fault
    fault = event if isinstance(event, Fault) else Fault(host=event.host if event else "")
    rank, trace = fault.rank, (fault.traceback or "").strip()
    host = fault.accused[0].host if fault.accused else fault.host
    same, followed, others, unsearched, log = list[int](), list[int](), dict[int, str](), 0, list[str]()
    stacks: list[dict[str, Any]] = []
    if attempt is not None and rank is not None:
        errors = [line for path in rank_logs(attempt, rank, ("err",)) for line in tail(path)]
        if not trace and fault.code in known.LEFT:  # a program of the user
            trace = known_errors.last_traceback(errors)
        first_error = known_errors.last_error(trace) or (trace or fault.error or "").partition("\n")[0]
        same, followed, others, unsearched = _others(attempt, rank, first_error)
        log = _log(attempt, rank, trace)
        frames = known_errors.crash_lines(errors)
        stacks = [{"ranks": [rank], "frames": frames}] if frames else []
    if attempt is not None and (fault.code is FaultCode.HANG or fault.limit):
        stacks = _stacks(attempt)
    files = _files(seen, attempt, rank)
    case = Case(
        name, program(), seen.plan, verdict, evidence.memory, host,
        saved=attempt is not None and has_saved(seen.plan, start_of(seen.run.attempts()[0])),
        fault=fault, log=files.get("its errors", ""), signal=evidence.job.signal, rerun=rerun(seen.run),
    )  # fmt: skip
    return {
        "attempt": attempt and attempt.number, "kind": verdict.kind.value, "cause": verdict.cause,
        "sure": verdict.sure, "sign": verdict.sign or None, **evidence.codes,
        "exit_code": fault.exit_code, "signal": fault.signal, "exception": fault.exception, "limit": fault.limit,
        "step": fault.step, "accused": [{"host": each.host, "rank": each.rank} for each in fault.accused],
        # when the first failure was reported, or the attempt ended; since the epoch
        "time": ((event.time if event else 0) or _ended(evidence, events)) if attempt else None,
        "rank": rank,  # that failed first
        "host": host or None, "cancelled_by": _user([each.by for each in pasts]) or None,
        "same": same,  # other ranks with the same error, or one of the same kind
        "followed": followed,  # ranks that ended because others had ended
        "others": others,  # the error line of each rank with a different error
        "unsearched": unsearched,  # number of further ranks, whose logs were not searched for errors
        "restarts": restarts(events),  # their causes, within the attempt
        "traceback": known_errors.own_frames(trace) or None,  # of `rank`, without most frames of libraries
        "log": log,  # its last lines, without the traceback
        "memory": dict(evidence.memory),
        "stacks": stacks,  # for a hang, of all ranks; for a crash, of `rank`. Equal ones once; the newest frame first
        "files": files,  # to look at, by a description (`its errors`)
        "todo": [{"words": each.words, "command": each.command or None} for each in advice(case)],
    }  # fmt: skip


def has_saved(plan: JobPlan, started: Started | None) -> bool:
    """Returns whether a run has a checkpoint, one that is unreadable now, or files of its own code since `started`."""
    try:
        if checkpoints.newest_step(Path(plan.checkpoint.dir)) is not None:
            return True
        if not plan.own_code or started is None:
            return False
        since = started.time * 1e9
        return user_checkpoints.newest(plan, since, LOOK) >= since
    except (checkpoints.CannotRead, OSError):
        return True


def restarts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    for entry in events:
        if (restart := as_kind(entry, Restart)) is not None:
            lines.append(messages.of_fault(restart))
        elif lines and (restored := as_kind(entry, Restored)) is not None:
            lines[-1] += f"; {messages.of_restored(restored)}"
    return lines


def _ended(evidence: known.Evidence, events: Sequence[Mapping[str, Any]]) -> float | None:
    # When an attempt without a fault ended: by its own events, else by the scheduler's notices
    times = [each.time for each in (last(events, Stop), last(events, Ended)) if each]
    if times:
        return max(times)
    return next((notice.time for notice in evidence.notices if notice.time is not None), None)


def _user(ids: Sequence[str]) -> str:
    by = next((each for each in reversed(ids) if each), "")
    try:
        return pwd.getpwuid(int(by)).pw_name if by.isdecimal() else by
    except KeyError:
        return by


def _others(attempt: Attempt, rank: int, first: str) -> tuple[list[int], list[int], dict[int, str], int]:
    # first: the error line of this rank. The last value is how many ranks have logs that were not searched
    logs = [each for each in _of_last_round(attempt, "err") if each[0] != rank]
    same, followed, others = list[int](), list[int](), dict[int, str]()
    for each, path in logs[:MOST_RANKS]:
        lines = [line for line in tail(path) if line.strip()]
        # Without a traceback: errors that the launcher explains, and what a program prints before it exits
        printed = next((line for line in lines[-1:] if line == first or known_errors.exception_of(line)), "")
        error = known_errors.last_error("\n".join(lines)) or printed
        if not error or known_errors.lost_peer(error):
            followed.append(each)
        elif error == first or known_errors.alike(error, first):
            same.append(each)
        else:
            others[each] = error
    return same, followed, others, max(0, len(logs) - MOST_RANKS)


def _of_last_round(attempt: Attempt, kind: str) -> list[tuple[int, Path]]:
    # Of all ranks together: a later round may have fewer ranks
    found = [each for each in rank_files(attempt) if each[2] == kind]
    last = max((number for _, number, _, _ in found), default=0)
    return [(rank, path) for rank, number, _, path in found if number == last]


def _log(attempt: Attempt, rank: int, trace: str) -> list[str]:
    shown: list[str] = []
    for path in rank_logs(attempt, rank):
        lines = known_errors.before_crash(tail(path))
        lines = known_errors.before_traceback(lines) if trace else lines
        shown += [line for line in lines if line.strip()][-LAST_LINES:]
    return shown[-LAST_LINES:]


def _stacks(attempt: Attempt) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, path in _of_last_round(attempt, "stacks"):
        groups.setdefault(known_errors.main_frames("\n".join(tail(path))), []).append(rank)
    return [{"ranks": ranks, "frames": frames} for frames, ranks in groups.items()]


def _files(seen: RunStatus, attempt: Attempt | None, rank: int | None) -> dict[str, str]:
    found = {"run": str(seen.run.path)}
    if outputs := seen.run.outputs():
        found["output"] = str(outputs[-1])
    if attempt is not None and attempt.logs.is_dir():
        found["logs"] = str(attempt.logs)
        logs = rank_logs(attempt, rank) if rank is not None else []
        for path in (each for each in logs if each.stat().st_size):
            found["its errors" if path.suffix == ".err" else "its output"] = str(path)
        if any(attempt.logs.glob("*.stacks")):
            found["stacks"] = str(attempt.logs / "rank-*.stacks")
    return found
