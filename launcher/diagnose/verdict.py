"""Reads all that is known of an attempt, and classifies why it ended: its kind, and its cause as one line.

The first row that applies decides:

| evidence | kind |
|---|---|
| the run was given up | no-progress |
| the search of its sweep ended it | pruned |
| a set-up line failed | setup-failed |
| a rank raised an exception | the kind of its last line (`known_errors`), else exception |
| agents report a failed rendezvous, a hang or a bad node | rendezvous-timeout, hang, bad-node |
| a program exited with a code, and its log ends with a traceback | as for an exception |
| a rank or a node ended without a report, or was asked to stop | the scheduler's state of the job, or its notice in |
| | the job's output, but no cancellation if a rank had exited or crashed before; else the kernel's counters of killed |
| | processes; else the last line of the rank's log with a symptom; else the exit code or signal |
| no agent reported anything | the same, without a rank's log; else the stop request; else the last line with a |
| | symptom in the job's output |
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher import errors
from launcher.failures import known_errors, messages
from launcher.failures.codes import EndKind, FaultCode, NextReason, StopReason
from launcher.formatting import cut, plural, rough_size
from launcher.monitoring.run_status import APART, JobStatus, RunState, RunStatus
from launcher.plan.plan import JobPlan
from launcher.runs import events as kinds
from launcher.runs.directory import Attempt, Run
from launcher.runs.history import first_fault
from launcher.runs.output_files import file_names, rank_logs, start_of, tail
from launcher.schedulers import pending, registry
from launcher.schedulers.base import JobExecution, Queue, Scheduler
from launcher.submission.render import setup_lines

LONGEST = 1000  # characters of a cause, or of a line of output: programs print lines of any length
NEAR_LIMIT = 0.9  # a killed process that used more than this fraction of its memory limit was probably killed for it
GIVEN_UP = {NextReason.NO_PROGRESS, NextReason.MAX_ATTEMPTS}
LEFT = {FaultCode.EXITED, FaultCode.RETURNED_EARLY, FaultCode.NO_RETRY, FaultCode.LEFT}
# Kinds of tasks and nodes that did not report their own end, if there is no other evidence.
_UNSURE_KINDS = {
    FaultCode.TASK_NOT_STARTED: EndKind.NEVER_STARTED,
    FaultCode.TASK_UNKNOWN: EndKind.UNKNOWN,
    **dict.fromkeys((FaultCode.NODE_ENDED, FaultCode.NODE_SILENT, FaultCode.LEADER_LOST), EndKind.NODE_LOST),
}
# Faults that agents report without knowing the cause.
_UNEXPLAINED = LEFT | _UNSURE_KINDS.keys() | {FaultCode.SIGNALLED, FaultCode.LOST_PEER, FaultCode.STOPPED_EARLY}
# Kinds for faults that need no further evidence, unless their error message matches a symptom.
_KINDS = {
    FaultCode.HANG: EndKind.HANG,
    **dict.fromkeys(
        (FaultCode.NOT_JOINED, FaultCode.RENDEZVOUS_TIMEOUT, FaultCode.NOT_REACHED, FaultCode.TOO_FEW, FaultCode.LATE),
        EndKind.RENDEZVOUS_TIMEOUT,
    ),
    **dict.fromkeys(
        (FaultCode.NOT_A_MEMBER, FaultCode.USAGE, FaultCode.REFUSED, FaultCode.NO_FOLDER, FaultCode.CONTAINER,
         FaultCode.ARCHIVE, FaultCode.UNREADABLE),
        EndKind.CONFIG_ERROR,
    ),
    FaultCode.OPEN_FILES: EndKind.LIMIT,
    **dict.fromkeys((FaultCode.PREFLIGHT, FaultCode.STILL_THERE), EndKind.BAD_NODE),
    FaultCode.CONDITION_FAILED: EndKind.NEVER_STARTED,
}  # fmt: skip
_OF_FILES = {FaultCode.UNREADABLE, FaultCode.ARCHIVE, FaultCode.CONTAINER, FaultCode.NO_FOLDER}
_STATE_KINDS = {
    "TIMEOUT": EndKind.WALL_TIME,
    "DEADLINE": EndKind.WALL_TIME,
    "PREEMPTED": EndKind.PREEMPTED,
    "REQUEUED": EndKind.REQUEUED,
    "NODE_FAIL": EndKind.NODE_LOST,
    "BOOT_FAIL": EndKind.NODE_LOST,
    "OUT_OF_MEMORY": EndKind.OUT_OF_MEMORY,
    "CANCELLED": EndKind.CANCELLED,
}
# A rank of a cancelled job ends by one of these signals, or with the exit code that a shell returns for it.
_CANCELS = {"SIGTERM", "SIGKILL", "SIGINT"}
_CANCELLED = {128 + signal.Signals[name] for name in _CANCELS}
DECISIVE = {*_STATE_KINDS} - {"CANCELLED"}  # job states that explain an end by themselves


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about an attempt. Every field but `state` may be missing (None or empty)."""

    state: RunState  # the state of the run after this attempt
    fault: kinds.Fault | kinds.SetupFailed | None = None  # the first
    stop: kinds.Stop | None = None  # the last: why the attempt stopped early
    stays: kinds.Stays | None = None  # the last: why the run does not continue by itself
    request: kinds.StopRequested | None = None  # the last
    ended: int | None = None  # the exit code of the attempt
    begun: bool = True  # whether the attempt has started
    scheduler: str = ""  # the title of the scheduler (`Slurm`)
    job: JobStatus = field(default_factory=JobStatus)
    notices: tuple[pending.Notice, ...] = ()  # messages of the scheduler in the job's output
    log: tuple[str, ...] = ()  # the last lines of the failed rank's log
    output: tuple[str, ...] = ()  # the last lines of the job's output
    setup: str = ""  # the set-up line that failed: its first line, or what ours does if the event does not say it
    cancelled: bool = False  # whether `launcher cancel` was called for the run
    pruned: kinds.Pruned | None = None  # None: the search of the run's sweep did not
    preempted: bool = False  # whether the scheduler was preempting the job when it stopped
    gpus: int | None = 0  # GPUs on each node that the run asked for; None: it was resumed since, with others maybe
    # bytes of memory (`used`, `peak`, `largest`, `limit`) and numbers of killed processes (`kills`, `host_kills`), as
    # in `launcher.agent.rank_watch`; `used` and `limit` are from the scheduler
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def codes(self) -> dict[str, str | None]:
        return {
            "code": self.fault.code.value if isinstance(self.fault, kinds.Fault) else None,
            "stop": self.stop.reason.value if self.stop else None,
            "stays": self.stays.reason.value if self.stays else None,
        }

    @property
    def unexplained(self) -> bool:
        """Whether agents reported no fault, or one without its cause."""
        if not isinstance(self.fault, kinds.Fault):
            return self.fault is None
        if known_errors.lost_peer(self.fault.error or ""):  # another rank had ended before
            return True
        return self.fault.code in _UNEXPLAINED and not self.fault.traceback

    @property
    def job_state(self) -> str:
        """The final state of the job from the scheduler or its notices (`TIMEOUT`); empty: none explains the end."""
        state = self.job.raw_state
        return state if state in DECISIVE else pending.main_state(self.notices) or state * (state in _STATE_KINDS)

    @property
    def failed_uncancelled(self) -> bool:
        """Whether the first failed rank ended as a cancellation does not end it."""
        fault = self.fault
        if not isinstance(fault, kinds.Fault) or fault.rank is None:
            return False
        if fault.exit_code is None:
            return fault.signal is not None and fault.signal not in _CANCELS
        return fault.exit_code not in _CANCELLED


@dataclass(frozen=True)
class Verdict:
    kind: EndKind
    cause: str | None  # as one line, which all commands show; None: the run is done, or the cause is not known
    sign: str = ""  # the log line that shows the kind; empty: the cause shows it
    sure: bool = True  # whether the evidence proves the kind. If not, it is the most probable one


def classify(seen: Evidence) -> Verdict:
    found = _classify(seen)
    cause = None if found.cause is None else cut(found.cause, LONGEST)
    if found.kind is EndKind.NO_GPU and cause is not None and seen.gpus is not None:
        cause += f"; it asked for {plural(seen.gpus, 'GPU')} a node (gpus_per_node)"
    return replace(found, cause=cause, sign=cut(found.sign, LONGEST))


def _classify(seen: Evidence) -> Verdict:
    if seen.stays is not None and seen.stays.reason in GIVEN_UP:
        return Verdict(EndKind.NO_PROGRESS, messages.of_next(seen.stays))
    if seen.state is RunState.DONE:
        return Verdict(EndKind.DONE, None)
    if seen.pruned is not None:
        after = "" if seen.pruned.step is None else f" after step {seen.pruned.step}"
        return Verdict(EndKind.PRUNED, f"the search of its sweep ended it{after}: others are ahead")
    if seen.state is RunState.STOPPED and seen.stop is not None:
        return _stopped(seen, seen.stop)
    if seen.fault is None:
        return _without_fault(seen)
    if isinstance(seen.fault, kinds.SetupFailed):
        line = f": {seen.setup}" if seen.setup else ""
        return Verdict(EndKind.SETUP_FAILED, f"{seen.fault.message} on {seen.fault.host}{line}")
    return _fault(seen, seen.fault)


def _fault(seen: Evidence, fault: kinds.Fault) -> Verdict:
    state, cause = seen.job_state, messages.of_fault(fault).rstrip(" :")
    if state in DECISIVE and seen.unexplained:
        cause = f"{cause}; {seen.scheduler} says {state}"
    if not seen.unexplained:
        if fault.code in _OF_FILES and fault.ends_with == errors.RESUME:  # a file server does not answer
            return Verdict(EndKind.STOPPED, cause)
        other = EndKind.EXITED if fault.exception == "SystemExit" else EndKind.EXCEPTION
        kind = known_errors.kind_of(fault.error or "", fault.exception, loads=bool(fault.reading))
        return Verdict(kind or _KINDS.get(fault.code, other), cause)
    if seen.cancelled and state not in DECISIVE and not seen.failed_uncancelled:
        return Verdict(EndKind.CANCELLED, _cancelled(seen))  # what agents saw then is what the cancellation did
    if state in _STATE_KINDS and not (state == "CANCELLED" and seen.failed_uncancelled):
        return Verdict(_STATE_KINDS[state], cause)
    if seen.cancelled:
        return Verdict(EndKind.CANCELLED, cause)
    killed = fault.code is FaultCode.SIGNALLED and fault.signal == "SIGKILL"
    if (by_kernel := _killed_for_memory(seen.memory)) and killed:
        return Verdict(EndKind.OUT_OF_MEMORY, f"{cause}; {by_kernel[0]}", sure=by_kernel[1])
    error = known_errors.last_error("\n".join(seen.log)) if fault.code in LEFT else ""
    if error:  # a program of the user; agents do not see its exceptions
        shown = cause if error == fault.error else f"{cause}: {error}"
        return Verdict(known_errors.kind_of(error) or EndKind.EXCEPTION, shown, sign=error)
    if found := known_errors.last_symptom(seen.log):
        return Verdict(found[0], cause, sign=found[1])
    return _by_code(seen, fault, cause)


def _by_code(seen: Evidence, fault: kinds.Fault, cause: str) -> Verdict:
    if fault.code in _UNSURE_KINDS:
        return Verdict(_UNSURE_KINDS[fault.code], cause, sure=False)
    if fault.code is FaultCode.SIGNALLED:
        if fault.signal == "SIGBUS":
            return Verdict(EndKind.SHARED_MEMORY, cause, sure=False)
        return Verdict(EndKind.KILLED, cause, sure=fault.signal not in (None, "SIGKILL"))
    if fault.code is FaultCode.LOST_PEER or known_errors.lost_peer(fault.error or ""):
        kind = known_errors.kind_of(fault.error or "", fault.exception)
        return Verdict(kind or EndKind.CONNECTION_LOST, cause, sure=False)
    if fault.code is FaultCode.STOPPED_EARLY:
        return Verdict(EndKind.CANCELLED if seen.state is RunState.CANCELLED else EndKind.STOPPED, cause, sure=False)
    if fault.code is FaultCode.NO_RETRY:
        return Verdict(EndKind.CONFIG_ERROR, cause)
    return Verdict(EndKind.EXITED_EARLY if fault.code is FaultCode.RETURNED_EARLY else EndKind.EXITED, cause)


def _killed_for_memory(memory: Mapping[str, int]) -> tuple[str, bool] | None:
    # None: there is no such evidence
    if memory.get("kills"):
        return "the kernel killed processes for lack of memory in its cgroup", True
    if memory.get("host_kills"):
        return "the kernel killed processes for lack of memory on that host", False
    most, limit = max(memory.get("largest", 0), memory.get("peak", 0), memory.get("used", 0)), memory.get("limit", 0)
    if limit and most >= NEAR_LIMIT * limit:
        return f"it used {rough_size(most)} of {rough_size(limit)} memory", False
    return None


def _stopped(seen: Evidence, stop: kinds.Stop) -> Verdict:
    stays = seen.stays
    at = f" at step {stop.step}" if stop.step is not None else ""
    why, next_ = messages.of_stop(stop), messages.of_next(stays) if stays else ""
    cause = f"{why}{at}" + (f"; {next_}" if next_ not in ("", why) else "")
    if stop.reason in (StopReason.TIME_LIMIT, StopReason.WARNING_SIGNAL):
        return Verdict(EndKind.WALL_TIME, cause)
    if stop.reason is StopReason.STOP_FILE:
        return Verdict(EndKind.STOPPED, cause)
    if seen.preempted:
        return Verdict(EndKind.PREEMPTED, cause)
    if seen.job_state in _STATE_KINDS:
        return Verdict(_STATE_KINDS[seen.job_state], cause)
    if seen.cancelled:
        return Verdict(EndKind.CANCELLED, cause)
    if stop.reason is StopReason.KILLED and seen.request is None:
        return Verdict(EndKind.KILLED, cause, sure=False)
    if stays is not None and (stays.reason is NextReason.PREEMPTED or stays.state == "PREEMPTED"):
        return Verdict(EndKind.PREEMPTED, cause)
    return Verdict(EndKind.STOPPED, cause)


def _cancelled(seen: Evidence) -> str:
    at = f" at step {seen.stop.step}" if seen.stop and seen.stop.step is not None else ""
    return f"it was cancelled{at}" if seen.begun else "it was cancelled before it started"


def _without_fault(seen: Evidence) -> Verdict:
    # No failure was reported: all agents were killed, or never started
    state, kind = seen.job_state, _STATE_KINDS.get(seen.job_state)
    last = next((line.strip() for line in reversed(seen.output) if line.strip()), "")
    code = f" (exit code {seen.ended})" if seen.ended is not None else ""
    request = messages.of_request(seen.request.host, seen.request.signal) if seen.request else ""
    reported = f"{seen.scheduler} says {state}" if state in DECISIVE else seen.job.text or state
    found = known_errors.last_symptom(seen.output) if kind is None else None
    sign = found[1] if found else ""
    show_last = (sign or last) and state not in _STATE_KINDS and not request
    printed = f"its last line: {sign or last}" if show_last else ""
    if seen.state is RunState.FAILED:
        parts = [f"{request or 'no rank reported a cause'}{code}", reported, printed]
        cause: str | None = "; ".join(part for part in parts if part)
    elif seen.cancelled and seen.state is RunState.CANCELLED and state not in DECISIVE:
        cause = _cancelled(seen)
    else:
        # Before an attempt, only the scheduler or the site's own programs print
        printed = "" if seen.begun else printed
        cause = "; ".join(part for part in (request, reported, printed) if part) or None
    cancelled = seen.cancelled, seen.state is RunState.CANCELLED
    if all(cancelled) or (kind is None and any(cancelled)):  # Slurm may cancel a job that uses too much memory
        return Verdict(EndKind.CANCELLED, cause)
    if kind is not None:
        return Verdict(kind, cause)
    if not seen.begun:
        return Verdict(EndKind.NEVER_STARTED, cause)
    if seen.request is not None:
        return Verdict(EndKind.STOPPED, cause, sure=False)
    if seen.state is RunState.FAILED and found:
        return Verdict(found[0], cause, sign=sign, sure=False)
    if seen.ended == errors.NO_RETRY:
        return Verdict(EndKind.CONFIG_ERROR, cause, sure=False)
    if seen.state is RunState.STOPPED:
        return Verdict(EndKind.STOPPED, cause)
    if (seen.ended is not None and seen.ended > 128) or seen.job.signal is not None:
        return Verdict(EndKind.KILLED, cause, sure=False)
    return Verdict(EndKind.LOST if seen.state is RunState.LOST else EndKind.UNKNOWN, cause, sure=False)


# -- Collects the evidence about an attempt: its events, outputs and logs, and the scheduler's history of its job


def evidence_of(seen: RunStatus) -> Evidence:
    """Returns the evidence about the last attempt of a run, without a query to the scheduler."""
    history = seen.history
    known = Evidence(
        seen.state, begun=history.attempt is not None, job=seen.job, cancelled=history.cancelled,
        pruned=history.pruned, ended=history.code,
    )  # fmt: skip
    evidence = _from_events(seen.plan, history.events, known)
    if not seen.state.over or seen.state is RunState.DONE or not evidence.unexplained:
        return evidence
    attempt = None if history.attempt is None else Attempt(seen.run, history.attempt)
    return _with_texts(seen, attempt, None, evidence)


def evidence_of_attempt(
    seen: RunStatus, attempt: Attempt, following: Attempt | None, past: JobExecution | None,
    events: Sequence[Mapping[str, Any]],
) -> Evidence:  # fmt: skip
    """Returns the evidence about an attempt that has ended (None: no next attempt, no record of the scheduler).

    events: its `latest_events`.
    """
    if following is None and seen.state.over:
        evidence = evidence_of(seen)
        if not evidence.unexplained:
            evidence = _with_texts(seen, attempt, None, evidence)
    else:
        ended = kinds.last(events, kinds.Ended)
        code = attempt.exit_code() if ended is None else ended.code  # else what its agents recorded
        if code is None:
            state = RunState.STOPPED if kinds.every(events, kinds.StopRequested) else RunState.LOST
        else:
            state = {errors.DONE: RunState.DONE, errors.RESUME: RunState.STOPPED}.get(code, RunState.FAILED)
        stays = kinds.last(events, kinds.Stays)
        if cancelled := stays is not None and stays.reason is NextReason.CANCELLED:  # and resumed since
            state = RunState.CANCELLED
        evidence = _from_events(seen.plan, events, Evidence(state, ended=code, cancelled=cancelled))
        evidence = replace(_with_texts(seen, attempt, following, evidence), gpus=None)
    if past is not None and not evidence.job.text:
        evidence = replace(evidence, job=replace(evidence.job, raw_state=past.raw_state))
    memory = dict(evidence.memory)
    if past is not None and past.used:
        memory["used"] = past.used
    if limit := registry.scheduler(seen.plan.cluster.scheduler).memory(seen.plan):
        memory.setdefault("limit", limit)
    return replace(evidence, memory=memory)


def _from_events(plan: JobPlan, events: Sequence[Mapping[str, Any]], evidence: Evidence) -> Evidence:
    stopped = kinds.last(events, kinds.Stopped)
    fault = first_fault(events)
    setup = ""
    if isinstance(fault, kinds.SetupFailed):
        failed = dict(enumerate(setup_lines(plan), 1)).get(fault.line)
        if failed is None:
            setup = "?"
        elif failed.line in (*plan.cluster.setup, *plan.env.setup):
            setup = failed.line.partition("\n")[0]
        elif failed.words not in fault.message:
            setup = failed.words
    return replace(
        evidence, fault=fault, stop=kinds.last(events, kinds.Stop), stays=kinds.last(events, kinds.Stays),
        request=kinds.last(events, kinds.StopRequested),
        preempted=stopped is not None and stopped.preempted, setup=setup,
        scheduler=registry.scheduler(plan.cluster.scheduler).title, gpus=plan.gpus_per_node,
        memory=dict(fault.memory or {}) if isinstance(fault, kinds.Fault) else {},
    )  # fmt: skip


def _with_texts(seen: RunStatus, attempt: Attempt | None, following: Attempt | None, evidence: Evidence) -> Evidence:
    output = output_lines(seen.run, attempt, following)
    found = pending.find(output, _forms(registry.scheduler(seen.plan.cluster.scheduler)))
    amounts = [{"used": each.used, "limit": each.limit} for each in found if each.used and each.limit]
    memory = {**evidence.memory, **(amounts[0] if amounts else {})}
    rank = evidence.fault.rank if isinstance(evidence.fault, kinds.Fault) else None
    log: tuple[str, ...] = ()
    if attempt is not None and rank is not None:
        log = tuple(line for path in rank_logs(attempt, rank) for line in tail(path)[-known_errors.LOG_LINES :])
    return replace(evidence, notices=found, output=tuple(output), log=log, memory=memory)


def _forms(scheduler: Scheduler) -> list[pending.Form]:
    # Which scheduler made the allocation in which a run is, is not known
    has_jobs = scheduler.on_this_machine or isinstance(scheduler, Queue)
    return [form for each in ([scheduler] if has_jobs else registry.schedulers()) for form in each.notices()]


def output_lines(run: Run, attempt: Attempt | None, following: Attempt | None = None) -> list[str]:
    """Returns the last lines of a job's output, printed during an attempt (None: any) and before the next one."""
    outputs = run.outputs()
    begin, end = 0, None
    if attempt is not None and (start := start_of(attempt)) is not None:
        names, begin = file_names(start.job), start.output
        outputs = [path for path in outputs if path.name in names]  # that of another job says nothing about it
        after = start_of(following) if following is not None else None
        if after and after.job == start.job:
            end = after.output or None
    return tail(outputs[-1], begin, end) if outputs else []


def job_executions(seen: RunStatus, job_id: str | None) -> list[JobExecution]:
    """Returns all executions of a job (several if requeued) that the scheduler remembers, oldest first."""
    scheduler = registry.scheduler(seen.plan.cluster.scheduler)
    return [] if job_id is None else scheduler.history(job_id, seen.plan.cluster.submit_timeout)


def execution_of(pasts: Sequence[JobExecution], attempt: Attempt, *, last: bool) -> JobExecution | None:
    """Returns the execution that was an attempt (`last`: the run's, and over), or None; pasts: oldest first."""
    if last and pasts:
        return pasts[-1]
    start = start_of(attempt)
    if start is None:
        return None
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start.time + APART))
    return next((past for past in reversed(pasts) if past.begin <= clock and past.begin[:1].isdigit()), None)


# -- The verdicts on the attempts of a run


@dataclass(frozen=True)
class EndedAttempt:
    attempt: Attempt
    verdict: Verdict
    codes: Mapping[str, str | None]  # of its end
    events: Sequence[Mapping[str, Any]]  # its latest ones


def ended(seen: RunStatus) -> list[tuple[Attempt, Attempt | None]]:
    """Returns the attempts of a run that have ended, each with the attempt after it (None: it is the last one)."""
    attempts = seen.run.attempts()
    following: list[Attempt | None] = [*attempts[1:], None]
    last = seen.state.over or seen.state is RunState.QUEUED  # queued: the job of the next attempt is pending
    return [pair for pair in zip(attempts, following, strict=False) if last or pair[1] is not None]


def verdicts(seen: RunStatus) -> list[EndedAttempt]:
    """Returns each attempt of a run that has ended, with its verdict, without a query to the scheduler."""
    found = []
    for attempt, after in ended(seen):
        events = seen.history.events_of(attempt)
        evidence = evidence_of_attempt(seen, attempt, after, None, events)
        found.append(EndedAttempt(attempt, classify(evidence), evidence.codes, events))
    return found
