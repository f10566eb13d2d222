"""All that `post-mortem` shows of one attempt. Reads the logs of its ranks."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.diagnose.post_mortem import evidence as known
from launcher.diagnose.post_mortem import traces
from launcher.diagnose.post_mortem.advice import Case, Step, advice
from launcher.diagnose.post_mortem.verdict import LEFT, Codes, Verdict, classify
from launcher.failures import symptoms
from launcher.failures.codes import FaultCode
from launcher.monitoring.live import RunStatus
from launcher.monitoring.state import RunState
from launcher.runs.directory import Attempt
from launcher.runs.events import Ended, Fault, Restart, Started, Stop, every, first, last

LAST_LINES = 10  # of the rank's log that are shown
MOST_RANKS = 256  # whose logs are looked at


@dataclass(frozen=True)
class Stack:
    """What several ranks were doing at the time of a hang.

    Attributes:
        ranks: they.
        frames: of the main thread, the newest first; empty: they wrote no stack.
    """

    ranks: tuple[int, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """One attempt.

    Attributes:
        attempt: its number; None: the run never had one.
        verdict: why it ended.
        time: when the first failure was told, or else when the scheduler ended it, in seconds since the epoch; None:
            nobody knows.
        rank, host: the first to fail, as far as it is known.
        by: user who cancelled its job.
        same, followed: other ranks with the same error, and those that only followed; `others` have another error.
        restarts: why ranks were started again before, in this attempt.
        traceback: of the rank, its own frames first.
        log: last lines of its log, without that traceback.
        stacks: of all ranks, for a hang.
        files: what is where.
        memory: as in the evidence.
        todo: what to do.
        codes: what is known of it, for programs.
        fault: what agents told of the first failure.
    """

    attempt: int | None
    verdict: Verdict
    time: float | None = None
    rank: int | None = None
    host: str = ""
    by: str = ""
    same: tuple[int, ...] = ()
    followed: tuple[int, ...] = ()
    others: Mapping[int, str] = field(default_factory=dict)
    restarts: tuple[str, ...] = ()
    traceback: str = ""
    log: tuple[str, ...] = ()
    stacks: tuple[Stack, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    todo: tuple[Step, ...] = ()
    codes: Codes = field(default_factory=Codes)
    fault: Fault = Fault(cause="")  # noqa: RUF009  it is frozen

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
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
    """The attempts that are over, each with the next one."""
    attempts = seen.run.attempts()
    following: list[Attempt | None] = [*attempts[1:], None]
    last = seen.state.over or seen.state is RunState.QUEUED  # a run that waits again
    return [pair for pair in zip(attempts, following, strict=False) if last or pair[1] is not None]


def verdicts(seen: RunStatus) -> list[tuple[Attempt, Verdict, Codes]]:
    """Why each attempt ended that is over, without asking the scheduler for more."""
    found = [(attempt, known.of_attempt(seen, attempt, after, None)) for attempt, after in ended(seen)]
    return [(attempt, classify(evidence), evidence.codes) for attempt, evidence in found]


def find(seen: RunStatus, attempt: Attempt | None, following: Attempt | None, *, name: str, program: str) -> Findings:
    """All about one attempt; None: the run never had one.

    Args:
        seen: the run.
        attempt: one of its attempts.
        following: the next one; None: it is the last.
        name: what the user calls the run by.
        program: how this program is called, for commands to copy.
    """
    if attempt is None:
        evidence = known.of(seen)
        verdict = classify(evidence)
        case = Case(name, program, seen.plan, verdict, word=evidence.word)
        by = _user([past.by for past in known.memories(seen, seen.history.job_id)])
        return Findings(None, verdict, by=by, todo=tuple(advice(case)), files=_files(seen, None, None))
    events = attempt.events()
    started = first(events, Started)
    pasts = known.memories(seen, started.job if started else None)
    past = known.past_of(pasts, attempt, last=following is None and seen.state.over)
    evidence = known.of_attempt(seen, attempt, following, past)
    verdict, told = classify(evidence), evidence.fault
    fault = told if isinstance(told, Fault) else Fault(cause="", host=told.host if told else "")
    rank, trace = fault.rank, (fault.traceback or "").strip()
    host = fault.accused[0].host if fault.accused else fault.host
    if rank is not None and not trace and fault.code in LEFT:  # a program of its own
        trace = traces.last_traceback(_errors(attempt, rank))
    same, followed, others = _others(attempt, rank, trace)
    files = _files(seen, attempt, rank)
    case = Case(
        name, program, seen.plan, verdict, evidence.memory, host,
        saved=_has_saved(Path(seen.plan.checkpoint.dir)),
        fault=fault, log=files.get("its errors", ""), word=evidence.word,
    )  # fmt: skip
    return Findings(
        attempt.number, verdict, time=(told.time if told else 0) or _ended(evidence, events), rank=rank, host=host,
        by=_user([past.by] if past else []), same=same, followed=followed, others=others, restarts=restarts(events),
        traceback=traces.own_frames(trace), log=() if rank is None else _log(attempt, rank, trace),
        stacks=_stacks(attempt) if fault.code is FaultCode.HANG else _crash(attempt, rank),
        files=files, memory=evidence.memory, todo=tuple(advice(case)), codes=evidence.codes, fault=fault,
    )  # fmt: skip


def _has_saved(folder: Path) -> bool:
    """Whether there is a checkpoint, as far as anybody can tell."""
    try:
        return checkpoints.newest_step(folder) is not None
    except checkpoints.Unavailable:
        return True


def restarts(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns the causes of the restarts in place, in the order of their rounds."""
    return tuple(event.cause for event in every(events, Restart))


def _ended(evidence: known.Evidence, events: Sequence[Mapping[str, Any]]) -> float | None:
    """When an attempt of which no agent told the end was ended: by its script's word, or the scheduler's."""
    told = [each.time for each in (last(events, Stop), last(events, Ended)) if each]
    if told:
        return max(told)
    return next((notice.time for notice in evidence.notices if notice.time is not None), None)


def _user(ids: Sequence[str]) -> str:
    """The name of the one who cancelled."""
    by = next((each for each in reversed(ids) if each), "")
    try:
        return pwd.getpwuid(int(by)).pw_name if by.isdecimal() else by
    except KeyError:
        return by


def _others(attempt: Attempt, rank: int | None, trace: str) -> tuple[tuple[int, ...], tuple[int, ...], dict[int, str]]:
    """Other ranks: those with the same error, those that only followed, and errors of their own by rank."""
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
    """The last lines that the rank wrote, without what is shown of it elsewhere."""
    shown: list[str] = []
    for path in known.rank_logs(attempt, rank):
        lines = traces.before_crash(known.tail(path))
        lines = traces.before_traceback(lines) if trace else lines
        shown += [line for line in lines if line.strip()][-LAST_LINES:]
    return tuple(shown[-LAST_LINES:])


def _errors(attempt: Attempt, rank: int) -> list[str]:
    """The last lines of a rank's errors."""
    return [line for path in known.rank_logs(attempt, rank, ("err",)) for line in known.tail(path)]


def _crash(attempt: Attempt, rank: int | None) -> tuple[Stack, ...]:
    """Returns the stack of a rank that crashed in native code."""
    if rank is None:
        return ()
    lines = _errors(attempt, rank)
    return (Stack((rank,), frames),) if (frames := traces.crash(lines)) else ()


def _stacks(attempt: Attempt) -> tuple[Stack, ...]:
    """Returns the stacks of all ranks in the last hang, with equal ones grouped."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in attempt.logs.glob("rank-*.stacks"):
        if match := re.fullmatch(r"rank-(\d+)(?:\.round-(\d+))?\.stacks", path.name):
            newest[int(match[1])] = max(newest.get(int(match[1]), (-1, path)), (int(match[2] or 0), path))
    last = max((number for number, _ in newest.values()), default=0)
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, (number, path) in sorted(newest.items()):
        if number == last:
            groups.setdefault(traces.main_frames("\n".join(known.tail(path))), []).append(rank)
    return tuple(Stack(tuple(ranks), frames) for frames, ranks in groups.items())


def _files(seen: RunStatus, attempt: Attempt | None, rank: int | None) -> dict[str, str]:
    """What is where, as far as it is there."""
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
