"""`why`: explains why a run waits, or is in its present state, and what would start it sooner."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from launcher.cli.output import cause, json_text, labelled, print_unreadable, program, table
from launcher.errors import RunError
from launcher.formatting import format_time, plural
from launcher.monitoring.run_status import JobMonitor, RunState, RunStatus, rerun, status_of
from launcher.monitoring.sweep_status import WAITING, not_begun
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.runs.history import elapsed
from launcher.runs.lookup import find
from launcher.runs.point_claims import ClaimsReader
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.base import QueryError, state_text
from launcher.schedulers.pending import Explanation, Option, PendingFacts, Waiting, Why
from launcher.submission.dependencies import StartDecision, conditions_met, decide, read_dependencies

TIMEOUT = 10.0  # seconds for one query to the scheduler


def run(arguments: Namespace) -> int:
    found = find(arguments.name, arguments.runs_dir)
    explanation = explain(found, program(), arguments.trials)
    if arguments.as_json:
        print(json_text(as_json(explanation)))
        return 0
    print(shown(explanation, time.time()))
    print_unreadable(found)
    return 0


def shown(found: Explanation, now: float) -> str:
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
        tried = [(" ".join(each.overrides) or "as it is", _start(each, now), each.note) for each in found.tried]
        lines += ["", *table([("CHANGE", "WOULD START", "NOTE"), *tried], wraps=2, indent=2)]
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
    if found.options:
        best = found.options[0]
        change = f"{_start(best, now)} with {' '.join(best.overrides)}"
        lines.append(f"sooner     {change}: {program()} why {found.run}")
    return lines


def _start(option: Option, now: float) -> str:
    return moment(option.starts, now) if option.starts is not None else "-"


def moment(starts: float, now: float) -> str:
    """Formats a start as `21:10 (in 12 min)`, with the date on another day; soon: `now`."""
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


# -- Finds why a run is in the state that it is in


def explain(run: Run, program: str, trials: int = 1) -> Explanation:
    """trials: most changes whose start a scheduler is asked for by a trial submission."""
    if run.is_point and (state := not_begun(run)) is not None:
        return _not_begun(run, state, program)
    seen = status_of(run, live := JobMonitor())
    if seen.state is RunState.QUEUED:
        found = _queued(seen, program, trials)
        return replace(found, notes=(*(f"race: {line}" for line in of_race(seen, live)), *found.notes))
    return _other(seen, program)


def estimate(run: Run, plan: JobPlan, job_id: str, program: str, timeout: float) -> Explanation | None:
    """Returns what a scheduler says of a job that was just submitted; timeout: seconds a query; raises QueryError."""
    return registry.scheduler(plan.cluster.scheduler).explain(_waiting(run, plan, job_id, program, 1), timeout)


def _waiting(run: Run, plan: JobPlan, job_id: str, program: str, trials: int) -> Waiting:
    fixed = any(each.partition("=")[0].lstrip("+~") == "min_nodes" for each in run.record().get("overrides", []))
    return Waiting(run.id, job_id, plan, program, fixed, trials)


def _queued(seen: RunStatus, program: str, trials: int) -> Explanation:
    plan, job_id = seen.plan, str(seen.history.job_id)
    scheduler, waiting = registry.scheduler(plan.cluster.scheduler), _waiting(seen.run, plan, job_id, program, trials)
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
    queue = live.snapshot(seen.plan.cluster.scheduler, queries, TIMEOUT)
    absent = "its state is not known now" if queue.problem else "not in the queue"
    lines = []
    for job, name in zip(jobs, names, strict=True):
        known = queue.jobs.get(queries.key(job))
        state = state_text(known.raw_state, known.reason) if known else absent
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


def _other(seen: RunStatus, program: str) -> Explanation:
    run, state = seen.run.id, seen.state
    facts = _facts(seen)
    if state is RunState.RUNNING:
        why, do = Why.RUNNING, f"`{program} status {run}` shows more"
    elif state is RunState.SUSPENDED:
        why, do = Why.SUSPENDED, "wait: it continues when the other job is over, or when somebody resumes it"
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
        again = rerun(seen.run) or f"resume {run}"
        do = f"`{program} post-mortem {run}` shows more; `{program} {again}` continues it"
    return Explanation(run, state.value, why, seen.history.job_id, facts, do=do)


def _facts(seen: RunStatus) -> PendingFacts:
    scheduler = seen.plan.cluster.scheduler if seen.plan.queued else ""
    job = seen.job
    facts = PendingFacts(scheduler=scheduler, job_state=job.raw_state, reason=job.reason, error=job.problem)
    if seen.state is not RunState.RUNNING:
        return facts
    facts = replace(facts, seconds=elapsed(seen.history.events, time.time(), over=False))
    if seen.progress:
        total = seen.progress.total if seen.progress.total > 0 else None
        facts = replace(facts, step=seen.progress.step, total=total)
    return facts


def _not_begun(run: Run, state: str, program: str) -> Explanation:
    sweep = sweep_of(run)
    assert sweep is not None  # only points can be in this state
    restart, manifest, limit = f"{program} sweep rerun {sweep.id}", sweep.manifest(), ""
    if state == RunState.CANCELLED.value:
        why, do = Why.NEVER_STARTED, f"`{restart} {run.path.name}` starts it"
    elif state == RunState.RUNNING.value:
        why, do = Why.RUNNING, f"`{program} status {run.id}` shows more"
    elif state != WAITING:
        why, do = Why.ENDED, f"`{restart} {run.path.name}` starts it again"
    elif manifest.packing is not None:
        if managers := len(ClaimsReader().of(sweep, manifest.packing).alive):
            why, do = Why.SLOT, _throttle(program, sweep, "pilots there are")
            limit = f"{managers * manifest.packing.slots} points at once, in pilots that run now"
        else:
            why = Why.NO_PILOT
            first = f"`{program} why {sweep.pilot(0).id}` shows what the first one waits for, if it does"
            do = f"{first}; `{restart}` submits pilots where too few are left"
    elif int(run.path.name) not in sweep.local_requests():
        why, do = Why.NOT_SUBMITTED, f"`{restart}` submits the remaining points"
    else:
        why, do = Why.TURN, _throttle(program, sweep)
        limit = f"{plural(manifest.parallelism or 1, 'point')} at once (sweep.parallelism)"
    return Explanation(run.id, state, why, do=do, limits=(f"sweep {sweep.id}: {limit}",) if limit else ())


def _throttle(program: str, sweep: Sweep, what: str = "run at once") -> str:
    return f"`{program} sweep throttle {sweep.id} N` changes how many {what}"


# -- Makes the text of an explanation from its code and facts, for the terminal and for `why --json`


def of_why(found: Explanation) -> str:
    text, facts = _TEXTS.get(found.why), found.facts
    if text is None:
        return facts.meaning or f"the scheduler says {facts.error or state_text(facts.job_state, facts.reason)}"
    return text if isinstance(text, str) else text(facts)


def as_json(found: Explanation) -> dict[str, Any]:
    """Returns an explanation as JSON types: `why` is the text, `why_code` its code, `facts` has only known facts."""
    facts = {name: value for name, value in vars(found.facts).items() if value not in (None, "")}
    return {**asdict(found), "why": of_why(found), "why_code": found.why.value, "facts": facts}


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
    why = facts.error or state_text(facts.job_state, facts.reason) or "its scheduler does not answer"
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
    Why.SUSPENDED: lambda facts: (
        f"its scheduler has stopped its processes, for another job or on a command (it says {facts.job_state})"
    ),
    Why.DONE: "it is done",
    Why.CANCELLED: "it was cancelled",
    Why.LOST: "its job is gone, and its script recorded no end",
    Why.ENDED: lambda facts: facts.cause or "no rank reported a cause",
    Why.NO_STATE: _no_state,
}
