"""The timeline of a run in its report, as data: what it did when (spans), and what happened (moments)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.failures import messages
from launcher.formatting import long_size, plural, si
from launcher.runs import events as kinds

Entry = Mapping[str, Any]  # an event, as files have it


@dataclass(frozen=True)
class Span:
    attempt: int  # the attempt's number
    what: str  # queued, starting, running or restarting
    begin: float  # in seconds since the epoch, like `end`
    end: float
    text: str = ""  # details, such as the number of ranks or the cause of a restart; may be empty


@dataclass(frozen=True)
class Moment:
    attempt: int  # the attempt's number
    kind: str  # checkpoint, stop, fault, restart, resized, warning or end
    time: float  # when the event happened, in seconds since the epoch
    text: str  # what happened, as one line


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]  # in order of time
    moments: tuple[Moment, ...]

    @property
    def begin(self) -> float | None:
        return min((span.begin for span in self.spans), default=None)

    @property
    def end(self) -> float | None:
        return max((span.end for span in self.spans), default=None)

    def total(self, what: str) -> float:
        return sum(span.end - span.begin for span in self.spans if span.what == what)


def timeline(
    journal: Sequence[Entry], attempts: Sequence[tuple[int, Sequence[Entry]]], now: float | None, *,
    queued: bool = False,
) -> Timeline:  # fmt: skip
    """Returns the timeline of a run from its journal and (number, events by time) of each attempt.

    now: for a run that is not over, the present time, at which its last span ends; None: the run is over.
    queued: whether it waits for its next attempt, so that the last one has ended.
    """
    submitted = [event.time for event in kinds.every(journal, kinds.Submitted)]
    spans: list[Span] = []
    moments: list[Moment] = []
    before: float | None = None  # when the previous attempt ended
    for place, (number, entries) in enumerate(attempts):
        if not entries:
            continue
        until = now if place + 1 == len(attempts) and not queued else None
        events = list(kinds.known(entry for entry in entries if entry["event"] != kinds.Progress.event))  # of a million
        started, ended = kinds.first(entries, kinds.Started), kinds.first(entries, kinds.Ended)
        began = started.time if started else float(entries[0]["time"])
        if (waited := _queued_since(submitted, before, began)) is not None and waited < began:
            spans.append(Span(number, "queued", waited, began))
        end = ended.time if ended else float(entries[-1]["time"]) if until is None else until
        spans += _spans(number, events, began, max(end, began))
        marks = ((event.time, _mark(event)) for event in events)
        moments += [Moment(number, mark[0], time, mark[1]) for time, mark in marks if mark is not None]
        before = spans[-1].end
    since = _queued_since(submitted, before, math.inf)
    if now is not None and since is not None and (queued or not attempts or (before is not None and since > before)):
        spans.append(Span(1 + max((number for number, _ in attempts), default=-1), "queued", since, max(since, now)))
    return Timeline(tuple(spans), tuple(moments))


def _queued_since(submitted: Sequence[float], before: float | None, began: float) -> float | None:
    # The last submission since the previous attempt ended (`before`), else that end: its job was requeued
    after = [time for time in submitted if time <= began and (before is None or time >= before)]
    return after[-1] if after else before


def _spans(number: int, events: Sequence[kinds.Event], began: float, end: float) -> list[Span]:
    spans: list[Span] = []
    what, since, text = "starting", began, ""
    for event in events:
        time = max(since, event.time)
        if isinstance(event, kinds.Met) and what != "running":
            spans.append(Span(number, what, since, time, text))
            what, since = "running", time
            text = f"{plural(event.ranks, 'rank')} on {plural(event.members, 'node')}"
        elif isinstance(event, kinds.Restart) and what == "running":
            spans.append(Span(number, what, since, time, text))
            what, since, text = "restarting", time, messages.of_fault(event)
    return [*spans, Span(number, what, since, max(since, end), text)]


def _mark(event: kinds.Event) -> tuple[str, str] | None:
    if isinstance(event, kinds.Saved):
        size, seconds = long_size(event.bytes), si(event.seconds, "s")
        return "checkpoint", f"checkpoint of step {event.step}, {size}, {seconds}"
    if isinstance(event, kinds.Restart):
        return "restart", f"restart in place{_at(event.step)}, round {event.round}: {messages.of_fault(event)}"
    if isinstance(event, kinds.Fault):
        cause = messages.of_fault(event)
        host = f" ({event.host})" if event.host not in cause else ""
        return "fault", f"failure{_at(event.step)}: {cause}{host}"
    if isinstance(event, kinds.SetupFailed):
        return "fault", f"failure: {event.message} ({event.host})"
    if isinstance(event, kinds.Stop):
        return "stop", f"stop{_at(event.step)}: {messages.of_stop(event)}"
    if isinstance(event, kinds.Resized):
        return "resized", messages.of_resized(event)
    if isinstance(event, kinds.SaveFailure):
        return "warning", f"the checkpoint of step {event.step} was not saved: {event.error}"
    if isinstance(event, kinds.PassedOver):
        return "warning", f"a checkpoint cannot be used: {event.checkpoint}: {'; '.join(event.problems)}"
    if isinstance(event, kinds.Restored):
        return "restart", messages.of_restored(event)
    if isinstance(event, kinds.Continues):
        return "end", f"continues: {messages.of_next(event)}"
    if isinstance(event, kinds.Stays):
        return "end", f"does not continue: {messages.of_next(event)}"
    return ("end", f"ended with exit code {event.code}") if isinstance(event, kinds.Ended) else None


def _at(step: int | None) -> str:
    return f" at step {step}" if step is not None and step >= 0 else ""
