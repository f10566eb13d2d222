"""Collects everything that `post-mortem` shows about an attempt: the verdict, the advice, and parts of ranks' logs."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.diagnose.post_mortem import evidence as known
from launcher.diagnose.post_mortem.advice import Case, Step, advice
from launcher.diagnose.post_mortem.evidence import (
    before_crash,
    before_traceback,
    crash_lines,
    last_traceback,
    main_frames,
    own_frames,
)
from launcher.diagnose.post_mortem.verdict import LEFT, Codes, Verdict, classify
from launcher.failures import symptoms, text
from launcher.failures.codes import FaultCode
from launcher.monitoring.packed import rerun
from launcher.monitoring.run_status import RunStatus
from launcher.monitoring.state import RunState
from launcher.runs import saves
from launcher.runs.directory import Attempt
from launcher.runs.events import Ended, Fault, Restart, Started, Stop, every, first, last
from launcher.spec.plan import JobPlan

LAST_LINES = 10  # last lines of the failed rank's log that are shown
LOOK = 3.0  # seconds in which files that a program has saved are looked for
MOST_RANKS = 256  # at most so many ranks' logs are searched for errors


@dataclass(frozen=True)
class Stack:
    """The stack of the main thread, which several ranks share if they hung in the same call."""

    ranks: tuple[int, ...]  # the ranks with this stack
    frames: tuple[str, ...]  # lines of Python's faulthandler, the newest frame first; empty: the ranks wrote no stack


@dataclass(frozen=True)
class Findings:
    """Everything that `post-mortem` shows about an attempt."""

    attempt: int | None  # the number of the attempt; None: the run had no attempt
    verdict: Verdict  # why the attempt ended
    # when the first failure was reported or, without one, when the attempt ended, in seconds since the epoch; None: not
    # known. rank, host: the rank that failed first, and the host of the failure; None and empty: not known
    time: float | None = None
    rank: int | None = None
    host: str = ""
    by: str = ""  # the user who cancelled the job; empty: not known, or the job was not cancelled
    same: tuple[int, ...] = ()  # other ranks with the same error as `rank`
    followed: tuple[int, ...] = ()  # ranks that ended because others had ended
    others: Mapping[int, str] = field(default_factory=dict)  # the error line of each rank with a different error
    restarts: tuple[str, ...] = ()  # the causes of the restarts of ranks within the attempt, as text
    traceback: str = ""  # the traceback of `rank`, without most frames of libraries
    log: tuple[str, ...] = ()  # the last lines of the log of `rank`, without the traceback
    stacks: tuple[Stack, ...] = ()  # for a hang, the stacks of all ranks; for a crash, the stack of `rank`
    files: Mapping[str, str] = field(default_factory=dict)  # paths of files to look at, by a description (`its errors`)
    # bytes of memory used and allowed, and numbers of kills, as in `Evidence.memory`
    memory: Mapping[str, int] = field(default_factory=dict)
    todo: tuple[Step, ...] = ()  # the advice
    # the codes that agents, ranks and the job script recorded about the end
    codes: Codes = field(default_factory=Codes)
    # the first failure that agents reported
    fault: Fault = Fault()  # noqa: RUF009  it is frozen

    def as_dict(self) -> dict[str, Any]:
        """Returns the findings as JSON types."""
        return {
            "attempt": self.attempt, "kind": self.verdict.kind.value, "cause": self.verdict.cause,
            "sure": self.verdict.sure, "sign": self.verdict.sign or None, **self.codes.as_dict(),
            "exit_code": self.fault.exit_code, "signal": self.fault.signal, "exception": self.fault.exception,
            "limit": self.fault.limit, "step": self.fault.step,
            "accused": [{"host": each.host, "rank": each.rank} for each in self.fault.accused],
            "time": self.time, "rank": self.rank,
            "host": self.host or None, "cancelled_by": self.by or None, "same": list(self.same),
            "followed": list(self.followed), "others": {str(rank): line for rank, line in self.others.items()},
            "restarts": list(self.restarts), "traceback": self.traceback or None, "log": list(self.log),
            "memory": dict(self.memory),
            "stacks": [{"ranks": list(each.ranks), "frames": list(each.frames)} for each in self.stacks],
            "files": dict(self.files),
            "todo": [{"words": each.words, "command": each.command or None} for each in self.todo],
        }  # fmt: skip


def ended(seen: RunStatus) -> list[tuple[Attempt, Attempt | None]]:
    """Returns the attempts of a run that have ended, each with the attempt after it (None: it is the last one)."""
    attempts = seen.run.attempts()
    following: list[Attempt | None] = [*attempts[1:], None]
    last = seen.state.over or seen.state is RunState.QUEUED  # queued: the job of the next attempt is pending
    return [pair for pair in zip(attempts, following, strict=False) if last or pair[1] is not None]


def verdicts(seen: RunStatus) -> list[tuple[Attempt, Verdict, Codes]]:
    """Returns each attempt of a run that has ended, with its verdict and codes, without a query to the scheduler."""
    found = [(attempt, known.of_attempt(seen, attempt, after, None)) for attempt, after in ended(seen)]
    return [(attempt, classify(evidence), evidence.codes) for attempt, evidence in found]


def find(seen: RunStatus, attempt: Attempt | None, following: Attempt | None, *, name: str, program: str) -> Findings:
    """Returns the findings about an attempt, from its files and the scheduler's history of its job.

    name, program: the run and the launcher's command, as the user typed them; for commands to copy.
    """
    if attempt is None:
        evidence = known.of(seen)
        verdict = classify(evidence)
        case = Case(name, program, seen.plan, verdict, signal=evidence.job.signal, rerun=rerun(seen.run))
        by = _user([past.by for past in known.job_executions(seen, seen.history.job_id)])
        return Findings(None, verdict, by=by, todo=tuple(advice(case)), files=_files(seen, None, None))
    events = attempt.latest_events()
    started = first(events, Started)
    pasts = known.job_executions(seen, started.job if started else None)
    past = known.execution_of(pasts, attempt, last=following is None and seen.state.over)
    evidence = known.of_attempt(seen, attempt, following, past)
    verdict, event = classify(evidence), evidence.fault
    fault = event if isinstance(event, Fault) else Fault(host=event.host if event else "")
    rank, trace = fault.rank, (fault.traceback or "").strip()
    host = fault.accused[0].host if fault.accused else fault.host
    if rank is not None and not trace and fault.code in LEFT:  # a program of the user
        trace = last_traceback(_errors(attempt, rank))
    same, followed, others = _others(attempt, rank, trace)
    files = _files(seen, attempt, rank)
    case = Case(
        name, program, seen.plan, verdict, evidence.memory, host,
        saved=has_saved(seen.plan, first(seen.run.attempts()[0].latest_events(), Started)),
        fault=fault, log=files.get("its errors", ""), signal=evidence.job.signal, rerun=rerun(seen.run),
    )  # fmt: skip
    return Findings(
        attempt.number, verdict, time=(event.time if event else 0) or _ended(evidence, events), rank=rank, host=host,
        by=_user([past.by] if past else []), same=same, followed=followed, others=others, restarts=restarts(events),
        traceback=own_frames(trace), log=() if rank is None else _log(attempt, rank, trace),
        stacks=_stacks(attempt) if fault.code is FaultCode.HANG or fault.hang else _crash(attempt, rank),
        files=files, memory=evidence.memory, todo=tuple(advice(case)), codes=evidence.codes, fault=fault,
    )  # fmt: skip


def has_saved(plan: JobPlan, started: Started | None) -> bool:
    """Returns whether a run has a checkpoint, or one that is unreadable now.

    started: the first attempt. Files that the user's own code has written since then count, too; None: not started.
    """
    try:
        if checkpoints.newest_step(Path(plan.checkpoint.dir)) is not None:
            return True
        if not plan.own_code or started is None:
            return False
        since = started.time * 1e9
        return saves.newest(plan, since, LOOK) >= since
    except (checkpoints.Unavailable, OSError):
        return True


def restarts(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns why ranks were restarted within an attempt, one line of text for each restart, the first one first."""
    return tuple(text.of_fault(event) for event in every(events, Restart))


def _ended(evidence: known.Evidence, events: Sequence[Mapping[str, Any]]) -> float | None:
    # Returns when an attempt without a fault ended, in seconds since the epoch; None: not known.
    # The time is from its events `stop` and `ended`, or else from the scheduler's notices.
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


def _others(attempt: Attempt, rank: int | None, trace: str) -> tuple[tuple[int, ...], tuple[int, ...], dict[int, str]]:
    if rank is None:
        return (), (), {}
    names = (re.fullmatch(r"rank-(\d+)\.err", path.name) for path in attempt.logs.glob("rank-*.err"))
    ranks = sorted(int(match[1]) for match in names if match)[:MOST_RANKS]
    first = trace.splitlines()[-1].strip() if trace else ""
    same, followed, others = [], [], {}
    for each in ranks:
        if each == rank:
            continue
        error = symptoms.last_error("\n".join(_errors(attempt, each)))
        if not error or symptoms.lost_peer(error):
            followed.append(each)
        elif first and error == first:
            same.append(each)
        else:
            others[each] = error
    return tuple(same), tuple(followed), others


def _log(attempt: Attempt, rank: int, trace: str) -> tuple[str, ...]:
    shown: list[str] = []
    for path in known.rank_logs(attempt, rank):
        lines = before_crash(known.tail(path))
        lines = before_traceback(lines) if trace else lines
        shown += [line for line in lines if line.strip()][-LAST_LINES:]
    return tuple(shown[-LAST_LINES:])


def _errors(attempt: Attempt, rank: int) -> list[str]:
    return [line for path in known.rank_logs(attempt, rank, ("err",)) for line in known.tail(path)]


def _crash(attempt: Attempt, rank: int | None) -> tuple[Stack, ...]:
    if rank is None:
        return ()
    lines = _errors(attempt, rank)
    return (Stack((rank,), frames),) if (frames := crash_lines(lines)) else ()


def _stacks(attempt: Attempt) -> tuple[Stack, ...]:
    # Ranks with equal stacks share one `Stack`
    newest: dict[int, tuple[int, Path]] = {}
    for path in attempt.logs.glob("rank-*.stacks"):
        if match := re.fullmatch(r"rank-(\d+)(?:\.round-(\d+))?\.stacks", path.name):
            newest[int(match[1])] = max(newest.get(int(match[1]), (-1, path)), (int(match[2] or 0), path))
    last = max((number for number, _ in newest.values()), default=0)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, (number, path) in sorted(newest.items()):
        if number == last:
            groups.setdefault(main_frames("\n".join(known.tail(path))), []).append(rank)
    return tuple(Stack(tuple(ranks), frames) for frames, ranks in groups.items())


def _files(seen: RunStatus, attempt: Attempt | None, rank: int | None) -> dict[str, str]:
    found = {"run": str(seen.run.path)}
    if outputs := seen.run.outputs():
        found["output"] = str(outputs[-1])
    if attempt is not None and attempt.logs.is_dir():
        found["logs"] = str(attempt.logs)
        logs = known.rank_logs(attempt, rank) if rank is not None else []
        for path in (each for each in logs if each.stat().st_size):
            found["its errors" if path.suffix == ".err" else "its output"] = str(path)
        if any(attempt.logs.glob("*.stacks")):
            found["stacks"] = str(attempt.logs / "rank-*.stacks")
    return found
