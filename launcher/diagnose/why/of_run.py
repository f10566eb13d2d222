"""Why a run is where it is, whatever its state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from launcher.formatting import format_time
from launcher.monitoring.live import JobMonitor, RunStatus, status_of
from launcher.monitoring.state import RunState
from launcher.monitoring.sweep import not_begun
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep, sweep_of
from launcher.schedulers import registry
from launcher.schedulers.diagnosis import ExplainsPending
from launcher.schedulers.explanation import Explanation, Waiting
from launcher.schedulers.queries import QueryError

TIMEOUT = 10.0  # seconds that one question may take


def explain(run: Run, program: str, cause: Callable[[RunStatus], str | None]) -> Explanation:
    """The explanation of a run or a point.

    Args:
        run: the run.
        program: how the launcher was called.
        cause: tells in a line why a run is not going on.

    | the run is | what is told |
    |---|---|
    | queued | its reason, from the scheduler |
    | running | since when, and how far it is |
    | suspended | by whom |
    | done | so |
    | stopped, failed, cancelled, lost | the cause in a line, and that `post-mortem` knows more |
    | unconfirmed | how to find out |
    | unknown | that the scheduler does not answer, or its word, which is not known here |
    | a point that has not begun | what it waits for |

    Raises:
        RunError: its record cannot be read.
    """
    state = not_begun(run) if run.is_point else None
    if state is not None:
        return _not_begun(run, state, program)
    seen = status_of(run, JobMonitor())
    if seen.state is RunState.QUEUED:
        return _queued(seen, program)
    return _other(seen, program, cause)


def _queued(seen: RunStatus, program: str) -> Explanation:
    plan, job_id = seen.plan, str(seen.history.job_id)
    fixed = any(word.partition("=")[0].lstrip("+~") == "min_nodes" for word in seen.run.record().get("overrides", []))
    scheduler, waiting = registry.scheduler(plan.cluster.scheduler), Waiting(seen.run.id, job_id, plan, program, fixed)
    unexplained = Explanation(seen.run.id, "queued", f"the scheduler says {seen.word}", job=job_id)
    if not isinstance(scheduler, ExplainsPending):
        return unexplained
    try:
        found = scheduler.explain(waiting, min(TIMEOUT, plan.cluster.submit_timeout))
    except QueryError as error:
        return replace(unexplained, notes=(f"not answered: {error}",))
    if found.throttled and (sweep := sweep_of(seen.run)):
        found = replace(found, do=_throttle(program, sweep))
    if seen.history.attempt is None:
        return found
    again = f"it has run before (attempt {seen.history.attempt}), and waits to go on from its newest checkpoint"
    return replace(found, notes=(again, *found.notes))


def _other(seen: RunStatus, program: str, cause: Callable[[RunStatus], str | None]) -> Explanation:
    run, state, job = seen.run.id, seen.state, seen.history.job_id
    if state is RunState.RUNNING:
        return Explanation(run, state.value, _running(seen), job=job, do=f"`{program} status {run}` tells more")
    if state is RunState.SUSPENDED:
        word = seen.word.partition(" ")[0]
        return Explanation(
            run, state.value, f"its scheduler has stopped its processes for another job (it says {word})", job=job,
            do="wait: it continues by itself when what it was suspended for is over",
        )  # fmt: skip
    if state is RunState.DONE:
        return Explanation(run, state.value, "it is done", job=job, do=f"`{program} report {run}` shows its results")
    if state is RunState.UNCONFIRMED:
        return Explanation(
            run, state.value, "it was being submitted, and nobody knows whether the scheduler took it", job=job,
            do=f"repeat the command that submitted it with run_id={run}: it takes the job that is there, or submits it",
        )  # fmt: skip
    if state is RunState.UNKNOWN:
        told = seen.word or "its scheduler does not answer"
        if seen.plan.queued and seen.word and not seen.unanswered:
            scheduler = seen.plan.cluster.scheduler
            told = f"{scheduler} says {seen.word}, a state that is not known here, so it counts as not over"
        return Explanation(
            run, state.value, f"nobody can tell: {told}", job=job,
            do=f"`{program} doctor --cluster {seen.plan.cluster.name}` looks at the scheduler",
        )  # fmt: skip
    why = cause(seen) or {
        RunState.CANCELLED: "it was cancelled", RunState.LOST: "its job is gone without a word"
    }.get(state, "no rank said why")  # fmt: skip
    do = f"`{program} post-mortem {run}` tells more; `{program} resume {run}` goes on"
    return Explanation(run, state.value, why, job=job, do=do)


def _running(seen: RunStatus) -> str:
    events = seen.history.events
    since = format_time(int(time.time() - events[0]["time"])) if events else None
    words = [f"it has run for {since}" if since else "it runs, and has not reported yet"]
    if seen.progress:
        total = f" of {seen.progress.total}" if seen.progress.total > 0 else ""
        words.append(f"step {seen.progress.step}{total}")
    return ", ".join(words) + (
        f" (the scheduler says {seen.word})" if seen.word.split(" ")[0] not in ("", "RUNNING", "R") else ""
    )


def _not_begun(run: Run, state: str, program: str) -> Explanation:
    sweep = sweep_of(run)
    assert sweep is not None  # only points have not begun
    if state == RunState.CANCELLED.value:
        return Explanation(
            run.id, state, "it was cancelled before it began",
            do=f"`{program} sweep rerun {sweep.id}` starts what did not run",
        )  # fmt: skip
    if int(run.path.name) not in sweep.local_requests():
        return Explanation(
            run.id, state, "it has not been handed over yet: the scheduler took no more jobs, or its submitter ended",
            do=f"`{program} sweep rerun {sweep.id}` hands over what is left",
        )  # fmt: skip
    at_once = sweep.manifest().parallelism or 1
    return Explanation(
        run.id, state, "it waits for its turn among the points of its sweep",
        limits=(f"sweep {sweep.id}: {at_once} point{'' if at_once == 1 else 's'} at once (sweep.parallelism)",),
        do=_throttle(program, sweep),
    )  # fmt: skip


def _throttle(program: str, sweep: Sweep) -> str:
    return f"`{program} sweep throttle {sweep.id} N` changes how many run at once"
