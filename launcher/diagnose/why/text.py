"""Makes the text of an explanation from its code and facts, for the terminal and for `why --json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from launcher.formatting import format_time
from launcher.schedulers.base import state_text
from launcher.schedulers.pending import Explanation, Facts, Why


def of_why(found: Explanation) -> str:
    """Returns why a run is in its current state, as one line."""
    text = _TEXTS.get(found.why, _pending)
    return text if isinstance(text, str) else text(found.facts)


def as_json(found: Explanation) -> dict[str, Any]:
    """Returns an explanation as JSON types: `why` is the text, `why_code` its code, `facts` has only known facts."""
    facts = {name: value for name, value in vars(found.facts).items() if value not in (None, "")}
    return {**asdict(found), "why": of_why(found), "why_code": found.why.value, "facts": facts}


def _detail(facts: Facts) -> str:
    return facts.error or state_text(facts.job_state, facts.reason)


def _pending(facts: Facts) -> str:
    return facts.meaning or f"the scheduler says {_detail(facts)}"


def _running(facts: Facts) -> str:
    parts = [
        "it runs, and has not reported yet" if facts.seconds is None else f"it has run for {format_time(facts.seconds)}"
    ]
    if facts.step is not None:
        parts.append(f"step {facts.step}" + (f" of {facts.total}" if facts.total is not None else ""))
    says = f" (the scheduler says {facts.reason})" if facts.reason else ""
    return ", ".join(parts) + (f" (its scheduler does not answer: {facts.error})" if facts.error else says)


def _no_state(facts: Facts) -> str:
    why = _detail(facts) or "its scheduler does not answer"
    if facts.scheduler and facts.job_state:
        why = f"{facts.scheduler} says {why}, a state that the launcher does not know, so it counts as not over"
    return f"its state is not known: {why}"


_TEXTS: dict[Why, str | Callable[[Facts], str]] = {
    Why.ALLOCATED: lambda facts: f"it waited until now: {facts.scheduler} says {facts.job_state}",
    Why.NOT_SUBMITTED: "it is not submitted: the scheduler accepted no more jobs, or the command was interrupted",
    Why.TURN: "it waits for its turn among the points of its sweep",
    Why.NO_PILOT: "no pilot of its sweep runs now",
    Why.SLOT: "it waits for a free slot of a pilot",
    Why.NEVER_STARTED: "it was cancelled before it started",
    Why.UNCONFIRMED: "it was being submitted, and it is not known whether the scheduler accepted it",
    Why.RUNNING: _running,
    Why.SUSPENDED: lambda facts: f"its scheduler has stopped its processes for another job (it says {facts.job_state})",
    Why.DONE: "it is done",
    Why.CANCELLED: "it was cancelled",
    Why.LOST: "its job is gone, and its script recorded no end",
    Why.ENDED: lambda facts: facts.cause or "no rank reported a cause",
    Why.NO_STATE: _no_state,
}
