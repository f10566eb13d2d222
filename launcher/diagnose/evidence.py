"""Reads all that is known of an attempt: events, output and tracebacks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import errors
from launcher.diagnose.verdict import Evidence
from launcher.failures import symptoms
from launcher.files import run_files
from launcher.monitoring.run_status import RunStatus
from launcher.monitoring.state import RunState
from launcher.runs import event_file
from launcher.runs.directory import Attempt, Run
from launcher.runs.events import (
    Ended,
    Fault,
    SetupFailed,
    Started,
    Stays,
    Stop,
    Stopped,
    StopRequested,
    every,
    first,
    last,
)
from launcher.runs.history import first_fault
from launcher.runs.output import file_names, last_state
from launcher.schedulers import pending, registry
from launcher.schedulers.base import JobExecution, Queue, Scheduler
from launcher.spec.plan import JobPlan
from launcher.submission.render import setup_lines

FRAMES = 6  # newest frames of a stack that are shown
LONG = 8  # a traceback with more frames than this is shown without frames of libraries
_HEAD = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'  File "([^"]*)", line \d+')
_IMPORT = re.compile(r"^<frozen |/importlib/__init__\.py$")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen ")
_LAUNCHER = re.compile(
    r"/launcher/(agent|worker)/|/torch/distributed/elastic/|/torch/multiprocessing/|/multiprocessing/"
)


def own_frames(trace: str) -> str:
    """Returns a traceback shortened so that the user's frames stand out.

    Without frames of the import machinery; of more than LONG frames, a sequence of a library's is one line and the
    last.
    """
    lines = trace.strip().splitlines()
    blocks = _blocks(lines)
    frames = [at for at, (path, _) in enumerate(blocks) if path]
    shown: list[str] = []
    skipped = 0
    for at, (path, text) in enumerate(blocks):
        follows = blocks[at + 1][0] if at + 1 < len(blocks) else ""
        library = bool(path and _LIBRARY.search(path))
        if path and (_IMPORT.search(path) or (len(frames) > LONG and library and follows and _LIBRARY.search(follows))):
            skipped += 1
            continue
        if skipped and len(frames) > LONG:
            shown.append(f"  ... {skipped} frame{'s' if skipped > 1 else ''} of libraries")
        skipped = 0
        shown += text
    return "\n".join(shown)


def _blocks(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _FRAME.match(line):
            blocks.append((match[1], [line]))
        elif blocks and (not blocks[-1][0] or line.startswith("   ")):
            blocks[-1][1].append(line)
        else:
            blocks.append(("", [line]))
    return blocks


def before_traceback(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a log before its last traceback, or before the chain of tracebacks that ends with it."""
    heads = [at for at, line in enumerate(lines) if line.startswith(_HEAD)]
    while heads:
        at = heads.pop()
        between = "\n".join(lines[heads[-1] : at]) if heads else ""
        if not any(words in between for words in _CHAIN):
            return list(lines[:at])
    return list(lines)


def last_traceback(lines: Sequence[str]) -> str:
    """Returns the last traceback (or chain of tracebacks) in a log, including the error line; empty: there is none."""
    rest = list(lines[len(before_traceback(lines)) :])
    heads = [at for at, line in enumerate(rest) if line.startswith(_HEAD)]
    if not heads:
        return ""
    inside = range(heads[-1] + 1, len(rest))
    end = next((at for at in inside if rest[at].strip() and not rest[at][0].isspace()), len(rest) - 1)
    return "\n".join(rest[: end + 1])


def crash_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the crashed thread's newest frames in a log, after faulthandler's `Fatal Python error: ...`, or ()."""
    begin = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Fatal Python error: ")), None)
    if begin is None:
        return ()
    text = "\n".join(lines[begin:])
    _, found, current = text.partition("Current thread ")
    return main_frames(current.partition("\n\n")[0]) if found else ()


def before_crash(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a log before the output of Python's faulthandler; all lines if there is none."""
    begin = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error: ")), len(lines))
    return list(lines[:begin])


def main_frames(stack: str) -> tuple[str, ...]:
    """Returns the main thread's newest frames in faulthandler's output, but ours; its first line if it has none."""
    main = re.split(r"\n\s*\n", stack.strip())[-1]
    frames = [line.strip() for line in main.splitlines() if line.lstrip().startswith("File ")]
    end = next((at for at, line in enumerate(frames) if line.endswith("in _run_workload")), len(frames))
    kept = frames[:end] or frames
    own = [line for line in kept if not _LAUNCHER.search(line)]
    return tuple((own or kept)[:FRAMES]) or tuple(stack.strip().splitlines()[:1])


# -- Collects the evidence about an attempt: its events, outputs and logs, and the scheduler's history of its job


TAIL = 64 * 1024  # bytes that are read from the end of an output or log
Event = Mapping[str, Any]


def of(seen: RunStatus) -> Evidence:
    """Returns the evidence about the last attempt of a run, without a query to the scheduler."""
    history = seen.history
    evidence = _from_events(
        seen.plan,
        history.events,
        Evidence(seen.state, begun=history.attempt is not None, job=seen.job),
    )
    evidence = replace(evidence, cancelled=history.cancelled, pruned=history.pruned, ended=history.code)
    if not seen.state.over or seen.state is RunState.DONE or not evidence.unexplained:
        return evidence
    attempt = None if history.attempt is None else Attempt(seen.run, history.attempt)
    return _with_texts(seen, attempt, None, evidence)


def of_attempt(seen: RunStatus, attempt: Attempt, following: Attempt | None, past: JobExecution | None) -> Evidence:
    """Returns the evidence about an attempt that has ended (None: no next attempt, no record of the scheduler)."""
    if following is None and seen.state.over:
        evidence = of(seen)
        if not evidence.unexplained:
            evidence = _with_texts(seen, attempt, None, evidence)
    else:
        events = attempt.latest_events()
        code = _code(attempt, events)
        evidence = replace(_from_events(seen.plan, events, Evidence(_earlier(code, events))), ended=code)
        evidence = _with_texts(seen, attempt, following, evidence)
    if past is not None:
        memory = {**evidence.memory, **({"used": past.used} if past.used else {})}
        if not evidence.job.text:
            evidence = replace(evidence, job=replace(evidence.job, raw_state=past.raw_state))
        evidence = replace(evidence, memory=memory)
    scheduler = registry.scheduler(seen.plan.cluster.scheduler)
    limit = scheduler.memory(seen.plan)
    if limit and "limit" not in evidence.memory:
        evidence = replace(evidence, memory={**evidence.memory, "limit": limit})
    return evidence


def _code(attempt: Attempt, events: Sequence[Event]) -> int | None:
    # Returns the exit code of an attempt, from its script or else from its agents; None: neither recorded one
    ended = last(events, Ended)
    return attempt.exit_code() if ended is None else ended.code


def _earlier(code: int | None, events: Sequence[Event]) -> RunState:
    if code is None:
        return RunState.STOPPED if every(events, StopRequested) else RunState.LOST
    return {errors.DONE: RunState.DONE, errors.RESUME: RunState.STOPPED}.get(code, RunState.FAILED)


def _from_events(plan: JobPlan, events: Sequence[Event], evidence: Evidence) -> Evidence:
    stopped = last(events, Stopped)
    fault = first_fault(events)
    setup = ""
    if isinstance(fault, SetupFailed):
        lines = [each.line for each in setup_lines(plan)]
        setup = lines[fault.line - 1].partition("\n")[0] if 0 < fault.line <= len(lines) else "?"
    return replace(
        evidence,
        fault=fault,
        stop=last(events, Stop),
        request=last(events, StopRequested),
        stays=last(events, Stays),
        preempted=stopped is not None and stopped.preempted,
        scheduler=registry.scheduler(plan.cluster.scheduler).title,
        cluster=plan.cluster.name,
        setup=setup,
        gpus=plan.gpus_per_node,
        memory=dict(fault.memory or {}) if isinstance(fault, Fault) else {},
    )


def _with_texts(seen: RunStatus, attempt: Attempt | None, following: Attempt | None, evidence: Evidence) -> Evidence:
    output = output_lines(seen.run, attempt, following)
    found = pending.find(output, _forms(registry.scheduler(seen.plan.cluster.scheduler)))
    amounts = next(((each.used, each.limit) for each in found if each.used and each.limit), None)
    memory = dict(evidence.memory)
    if amounts is not None and amounts[0] and amounts[1]:
        memory |= {"used": amounts[0], "limit": amounts[1]}
    rank = evidence.fault.rank if isinstance(evidence.fault, Fault) else None
    log: tuple[str, ...] = ()
    if attempt is not None and rank is not None:
        log = tuple(line for path in rank_logs(attempt, rank) for line in tail(path)[-symptoms.LOG_LINES :])
    return replace(evidence, notices=found, output=tuple(output), log=log, memory=memory)


def _forms(scheduler: Scheduler) -> list[pending.Form]:
    # For a run inside an allocation they are the forms of all schedulers: which one made the allocation is not known
    has_jobs = scheduler.on_this_machine or isinstance(scheduler, Queue)
    writers = [scheduler] if has_jobs else registry.schedulers()
    return [form for each in writers for form in each.notices()]


def output_lines(run: Run, attempt: Attempt | None, following: Attempt | None = None) -> list[str]:
    """Returns the last lines of a job's output, printed during an attempt (None: any) and before the next one."""
    outputs = run.outputs()
    begin, end = 0, None
    if attempt is not None:
        started = _started(attempt)
        names = file_names(started.job if started else None)
        own = [path for path in outputs if path.name in names]
        outputs = own or outputs
        begin = started.output if started else 0
        after = _started(following) if following is not None else None
        if started and after and after.job == started.job:
            end = after.output or None
    return tail(outputs[-1], begin, end) if outputs else []


def _started(attempt: Attempt) -> Started | None:
    return first(event_file.read(attempt.events_file("script")), Started)  # the files of ranks may be long


def rank_logs(attempt: Attempt, rank: int, kinds: Sequence[str] = ("out", "err")) -> list[Path]:
    """Returns the existing log files of a rank in its last round: `out` is standard output, `err` standard error."""
    found: dict[int, dict[str, Path]] = {}
    for path in attempt.logs.glob(f"rank-{rank}.*"):
        if match := re.fullmatch(rf"rank-{rank}(?:\.round-(\d+))?\.(\w+)", path.name):
            found.setdefault(int(match[1] or 0), {})[match[2]] = path
    newest = next((found[number] for number in sorted(found, reverse=True) if found[number].keys() & {*kinds}), {})
    return [newest[kind] for kind in kinds if kind in newest]


def tail(path: Path, begin: int = 0, end: int | None = None, most: int = TAIL) -> list[str]:
    """Returns the last lines, in at most so many bytes, of a file or range (end=None: its end); [] if unreadable."""
    try:
        data, start = run_files.read_range(path, begin, end, most)
    except OSError:
        return []
    lines = [last_state(line) for line in data.decode(errors="replace").split("\n")]
    return lines[1 if start > begin else 0 : -1 if lines and not lines[-1] else None]


def job_executions(seen: RunStatus, job_id: str | None) -> list[JobExecution]:
    """Returns all executions of a job (several if requeued) that the scheduler remembers, oldest first."""
    scheduler = registry.scheduler(seen.plan.cluster.scheduler)
    return [] if job_id is None else scheduler.history(job_id, seen.plan.cluster.submit_timeout)


def execution_of(pasts: Sequence[JobExecution], attempt: Attempt, *, last: bool) -> JobExecution | None:
    """Returns the execution that was an attempt (`last`: the run's, and over), or None; pasts: oldest first."""
    if last and pasts:
        return pasts[-1]
    started = _started(attempt)
    if started is None:
        return None
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(started.time + 1))
    return next((past for past in reversed(pasts) if past.begin <= clock and past.begin[:1].isdigit()), None)
