"""`why`: why a run is in the state that it is in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from launcher.errors import RunError
from launcher.formatting import format_time, plural
from launcher.monitoring import packed
from launcher.monitoring.run_status import JobMonitor, RunStatus, status_of
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import not_begun
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, state_text
from launcher.schedulers.pending import Explanation, PendingFacts, Waiting, Why
from launcher.spec.plan import JobPlan
from launcher.submission.dependencies import StartDecision, conditions_met, decide, read_dependencies

TIMEOUT = 10.0  # seconds for one query to the scheduler
TRIED_AT_ONCE = 3  # changes that are tried for a run that was just submitted: another size, time or queue


def explain(run: Run, program: str, cause: Callable[[RunStatus], str | None]) -> Explanation:
    """Returns the explanation of a run's state.

    | state of the run | explanation |
    |---|---|
    | queued | the scheduler's reason, and what would start sooner |
    | running | since when it runs, and its step |
    | suspended | the scheduler's state |
    | done | that it is done |
    | stopped, failed, cancelled, lost | the cause as one line; `post-mortem` shows more |
    | unconfirmed | how to find out whether it was submitted |
    | unsubmitted | how the user submits it |
    | unknown | that the scheduler does not answer, or that its state for the job is not known to the launcher |
    | a point that has not started | what it waits for |

    Raises RunError: the run's record cannot be read.
    """
    state = not_begun(run) if run.is_point else None
    if state is not None:
        return _not_begun(run, state, program)
    seen = status_of(run, live := JobMonitor())
    if seen.state is RunState.QUEUED:
        found = _queued(seen, program)
        return replace(found, notes=(*(f"race: {line}" for line in of_race(seen, live)), *found.notes))
    return _other(seen, program, cause)


def estimate(run: Run, plan: JobPlan, job_id: str, program: str, timeout: float) -> Explanation | None:
    """Returns what a scheduler says of a job that was just submitted; None: nothing. Raises QueryError, RunError.

    timeout: seconds for one query.
    """
    waiting = replace(_waiting(run, plan, job_id, program), most=TRIED_AT_ONCE)
    return registry.scheduler(plan.cluster.scheduler).explain(waiting, timeout)


def _waiting(run: Run, plan: JobPlan, job_id: str, program: str) -> Waiting:
    fixed = any(each.partition("=")[0].lstrip("+~") == "min_nodes" for each in run.record().get("overrides", []))
    return Waiting(run.id, job_id, plan, program, fixed)


def _queued(seen: RunStatus, program: str) -> Explanation:
    plan, job_id = seen.plan, str(seen.history.job_id)
    scheduler, waiting = registry.scheduler(plan.cluster.scheduler), _waiting(seen.run, plan, job_id, program)
    unexplained = Explanation(seen.run.id, "queued", Why.UNKNOWN, job_id, _facts(seen))
    try:
        found = scheduler.explain(waiting, min(TIMEOUT, plan.cluster.submit_timeout))
    except QueryError as error:
        return replace(unexplained, notes=(f"not answered: {error}",))
    if found is None:
        return unexplained
    if found.why is Why.THROTTLED and (sweep := sweep_of(seen.run)):
        found = replace(found, do=_throttle(program, sweep))
    try:
        if plan.after and not conditions_met(seen.run):
            found = _after(found, plan, program)
    except RunError as error:
        found = replace(found, notes=(f"after: {error}", *found.notes))
    if seen.history.attempt is None:
        return found
    before = f"it has run before (attempt {seen.history.attempt}), and will continue from its newest checkpoint"
    return replace(found, notes=(before, *found.notes))


def of_race(seen: RunStatus, live: JobMonitor) -> list[str]:
    """Returns a line about each job of a race (cluster.race) of which none has started yet."""
    if seen.state is not RunState.QUEUED or not seen.plan.race:
        return []
    jobs = [str(seen.history.job_id), *seen.history.waiting]
    members = seen.run.record()["config"]["cluster"]["race"]
    names = members if len(members) == len(jobs) else [""] * len(jobs)
    queries = registry.queue(seen.plan.cluster.scheduler).queries(TIMEOUT)
    queue = live.snapshot(seen.plan.cluster.scheduler, queries, TIMEOUT).jobs
    lines = []
    for job, name in zip(jobs, names, strict=True):
        known = queue.get(queries.key(job))
        state = state_text(known.raw_state, known.reason) if known else "not in the queue"
        lines.append(f"job {job}{f' ({name})' if name else ''}: {state}")
    return lines


def _after(found: Explanation, plan: JobPlan, program: str) -> Explanation:
    dependencies, scheduler = read_dependencies(plan.after), plan.cluster.scheduler
    found = replace(found, awaited=tuple(each.awaited for each in dependencies))
    waits = found.why not in (Why.WAITS, Why.HELD) or decide(dependencies)[0] is StartDecision.WAIT
    if waits or registry.queue(scheduler).frees_dependents:
        return found
    note = f"on {scheduler}, a job that was deleted before it started releases none that waited for it"
    do = f"`{program} cancel {found.run}`, and submit it again, without `after` if that cannot be met any more"
    return replace(found, do=do, notes=(note, *found.notes))


def _other(seen: RunStatus, program: str, cause: Callable[[RunStatus], str | None]) -> Explanation:
    run, state = seen.run.id, seen.state
    facts = _facts(seen)
    if state is RunState.RUNNING:
        why, do = Why.RUNNING, f"`{program} status {run}` shows more"
    elif state is RunState.SUSPENDED:
        why, do = Why.SUSPENDED, "wait: it continues by itself when the other job is over"
    elif state is RunState.DONE:
        why, do = Why.DONE, f"`{program} report {run}` shows its results"
    elif state is RunState.UNCONFIRMED:
        why = Why.UNCONFIRMED
        do = f"repeat the command that submitted it with run_id={run}: it finds the job, or submits it"
    elif state is RunState.UNSUBMITTED:
        why = Why.BY_HAND
        do = "repeat the command that made it" + ("" if seen.run.is_point else f" with run_id={run}")
        do += ": with submit=false it prints the command again, else it submits"
    elif state is RunState.UNKNOWN:
        why, do = Why.NO_STATE, f"`{program} doctor --cluster {seen.plan.cluster.name}` checks the scheduler"
    else:
        facts = replace(facts, cause=cause(seen) or "")
        unexplained = {RunState.CANCELLED: Why.CANCELLED, RunState.LOST: Why.LOST}.get(state, Why.ENDED)
        why = Why.ENDED if facts.cause else unexplained
        again = packed.rerun(seen.run) or f"resume {run}"
        do = f"`{program} post-mortem {run}` shows more; `{program} {again}` continues it"
    return Explanation(run, state.value, why, seen.history.job_id, facts, do=do)


def _facts(seen: RunStatus) -> PendingFacts:
    scheduler = seen.plan.cluster.scheduler if seen.plan.queued else ""
    facts = PendingFacts(
        scheduler=scheduler, job_state=seen.job.raw_state, reason=seen.job.reason, error=seen.job.problem
    )
    if seen.state is RunState.RUNNING and seen.history.events:
        facts = replace(facts, seconds=int(time.time() - seen.history.events[0]["time"]))
    if seen.state is RunState.RUNNING and seen.progress:
        total = seen.progress.total if seen.progress.total > 0 else None
        facts = replace(facts, step=seen.progress.step, total=total)
    return facts


def _not_begun(run: Run, state: str, program: str) -> Explanation:
    sweep = sweep_of(run)
    assert sweep is not None  # only points can be in this state
    rerun, manifest, limit = f"{program} sweep rerun {sweep.id}", sweep.manifest(), ""
    if state == RunState.CANCELLED.value:
        why, do = Why.NEVER_STARTED, f"`{rerun} {run.path.name}` starts it"
    elif manifest.packing is not None:
        if managers := len(packed.Boards().of(sweep, manifest.packing).alive):
            why, do = Why.SLOT, _throttle(program, sweep, "pilots there are")
            limit = f"{managers * manifest.packing.slots} points at once, in pilots that run now"
        else:
            why = Why.NO_PILOT
            first = f"`{program} why {sweep.pilot(0).id}` shows what the first one waits for, if it does"
            do = f"{first}; `{rerun}` submits pilots where too few are left"
    elif int(run.path.name) not in sweep.local_requests():
        why, do = Why.NOT_SUBMITTED, f"`{rerun}` submits the remaining points"
    else:
        why, do = Why.TURN, _throttle(program, sweep)
        limit = f"{plural(manifest.parallelism or 1, 'point')} at once (sweep.parallelism)"
    return Explanation(run.id, state, why, do=do, limits=(f"sweep {sweep.id}: {limit}",) if limit else ())


def _throttle(program: str, sweep: Sweep, what: str = "run at once") -> str:
    return f"`{program} sweep throttle {sweep.id} N` changes how many {what}"


# -- Makes the text of an explanation from its code and facts, for the terminal and for `why --json`


def of_why(found: Explanation) -> str:
    """Returns why a run is in its current state, as one line."""
    text = _TEXTS.get(found.why, _pending)
    return text if isinstance(text, str) else text(found.facts)


def as_json(found: Explanation) -> dict[str, Any]:
    """Returns an explanation as JSON types: `why` is the text, `why_code` its code, `facts` has only known facts."""
    facts = {name: value for name, value in vars(found.facts).items() if value not in (None, "")}
    return {**asdict(found), "why": of_why(found), "why_code": found.why.value, "facts": facts}


def _detail(facts: PendingFacts) -> str:
    return facts.error or state_text(facts.job_state, facts.reason)


def _pending(facts: PendingFacts) -> str:
    return facts.meaning or f"the scheduler says {_detail(facts)}"


def _running(facts: PendingFacts) -> str:
    text = "it runs, and has not reported yet"
    if facts.seconds is not None:
        text = f"it has run for {format_time(facts.seconds)}"
    if facts.step is not None:
        text += f", step {facts.step}" + (f" of {facts.total}" if facts.total is not None else "")
    if facts.error:
        return f"{text} (its scheduler does not answer: {facts.error})"
    return f"{text} (the scheduler says {facts.reason})" if facts.reason else text


def _no_state(facts: PendingFacts) -> str:
    why = _detail(facts) or "its scheduler does not answer"
    if facts.scheduler and facts.job_state:
        why = f"{facts.scheduler} says {why}, a state that the launcher does not know, so it counts as not over"
    return f"its state is not known: {why}"


_TEXTS: dict[Why, str | Callable[[PendingFacts], str]] = {
    Why.ALLOCATED: lambda facts: f"it waited until now: {facts.scheduler} says {facts.job_state}",
    Why.NOT_SUBMITTED: "it is not submitted: the scheduler accepted no more jobs, or the command was interrupted",
    Why.TURN: "it waits for its turn among the points of its sweep",
    Why.NO_PILOT: "no pilot of its sweep runs now",
    Why.SLOT: "it waits for a free slot of a pilot",
    Why.NEVER_STARTED: "it was cancelled before it started",
    Why.UNCONFIRMED: "it was being submitted, and it is not known whether the scheduler accepted it",
    Why.BY_HAND: "it is yours to submit (submit=false), and the scheduler has no such job yet",
    Why.RUNNING: _running,
    Why.SUSPENDED: lambda facts: f"its scheduler has stopped its processes for another job (it says {facts.job_state})",
    Why.DONE: "it is done",
    Why.CANCELLED: "it was cancelled",
    Why.LOST: "its job is gone, and its script recorded no end",
    Why.ENDED: lambda facts: facts.cause or "no rank reported a cause",
    Why.NO_STATE: _no_state,
}
