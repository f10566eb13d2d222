"""Makes the timeline of a run (spans and moments) from its journal and the events of its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.failures import text as texts
from launcher.formatting import long_size, plural
from launcher.reports import words
from launcher.runs.events import (
    Continues,
    Ended,
    Event,
    Fault,
    Met,
    PassedOver,
    Progress,
    Resized,
    Restart,
    Saved,
    SaveFailed,
    SetupFailed,
    Started,
    Stays,
    Stop,
    Submitted,
    every,
    first,
    known,
    last,
)

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """A period of an attempt, shown as a bar."""

    attempt: int  # the attempt's number
    # what the attempt did: queued, starting, running or restarting. begin, end: the period's start and end, in seconds
    # since the epoch
    what: str
    begin: float
    end: float
    text: str = ""  # details, such as the number of ranks or the cause of a restart; may be empty


@dataclass(frozen=True)
class Moment:
    """An event of an attempt, shown as a mark."""

    attempt: int  # the attempt's number
    kind: str  # checkpoint, stop, fault, restart, resized, warning or end
    time: float  # when the event happened, in seconds since the epoch
    text: str  # what happened, as one line


@dataclass(frozen=True)
class Timeline:
    """The history of a run."""

    spans: tuple[Span, ...]  # the periods of all attempts, in order of time
    moments: tuple[Moment, ...]  # the events of all attempts, in order of time

    @property
    def begin(self) -> float | None:
        return min((span.begin for span in self.spans), default=None)

    @property
    def end(self) -> float | None:
        return max((span.end for span in self.spans), default=None)

    def total(self, what: str) -> float:
        """Returns the total length in seconds of all spans with this `what`."""
        return sum(span.end - span.begin for span in self.spans if span.what == what)


def timeline(journal: Sequence[Entry], attempts: Sequence[tuple[int, Sequence[Entry]]], now: float | None) -> Timeline:
    """Returns the timeline of a run.

    journal: the events in the run's journal, such as its submissions.
    attempts: (number, events sorted by time) of each attempt, in order of the attempts.
    now: for a run that is not over, the present time, at which its last span ends; None: the run is over.
    """
    submitted = [event.time for event in every(journal, Submitted)]
    spans: list[Span] = []
    moments: list[Moment] = []
    before: float | None = None  # when the previous attempt ended
    for place, (number, entries) in enumerate(attempts):
        if not entries:
            continue
        newest = place + 1 == len(attempts)
        events = list(known(entries))
        started, ended = first(entries, Started), first(entries, Ended)
        began = started.time if started else float(entries[0]["time"])
        if (waited := _queued_since(submitted, before, began)) is not None and waited < began:
            spans.append(Span(number, "queued", waited, began))
        end = ended.time if ended else now if newest and now is not None else float(entries[-1]["time"])
        spans += _spans(number, events, began, max(end, began))
        moments += [moment for event in events if (moment := _moment(number, event)) is not None]
        before = spans[-1].end
    if now is not None and submitted and (not attempts or (before is not None and submitted[-1] > before)):
        spans.append(Span(1 + max((number for number, _ in attempts), default=-1), "queued", submitted[-1], now))
    return Timeline(tuple(spans), tuple(moments))


def _queued_since(submitted: Sequence[float], before: float | None, began: float) -> float | None:
    """Returns when an attempt was queued, in seconds since the epoch; None: not known.

    | after the end of the previous attempt | queued at |
    |---|---|
    | the run was submitted | the last submission before the attempt began |
    | the run was not submitted: its job was requeued | the end of the previous attempt |
    | (there is no previous attempt) | the last submission before the attempt began |

    before: when the previous attempt ended; None: there is none.
    """
    known = [time for time in submitted if time <= began and (before is None or time >= before)]
    return known[-1] if known else before


def _spans(number: int, events: Sequence[Event], began: float, end: float) -> list[Span]:
    spans: list[Span] = []
    what, since, text = "starting", began, ""
    for event in events:
        time = max(since, event.time)
        if isinstance(event, Met) and what != "running":
            spans.append(Span(number, what, since, time, text))
            what, since = "running", time
            text = f"{plural(event.ranks, 'rank')} on {plural(event.members, 'node')}"
        elif isinstance(event, Restart) and what == "running":
            spans.append(Span(number, what, since, time, text))
            what, since, text = "restarting", time, texts.of_fault(event)
    return [*spans, Span(number, what, since, max(since, end), text)]


def _moment(number: int, event: Event) -> Moment | None:
    mark = _mark(event)
    return None if mark is None else Moment(number, mark[0], event.time, mark[1])


def _mark(event: Event) -> tuple[str, str] | None:
    if isinstance(event, Saved):
        return (
            "checkpoint",
            f"checkpoint of step {event.step}, {long_size(event.bytes)}, {words.latency(event.seconds)}",
        )
    if isinstance(event, Restart):
        return "restart", f"restart in place{_at(event.step)}, round {event.round}: {texts.of_fault(event)}"
    if isinstance(event, Fault):
        cause = texts.of_fault(event)
        host = f" ({event.host})" if event.host not in cause else ""
        return "fault", f"fault{_at(event.step)}: {cause}{host}"
    if isinstance(event, SetupFailed):
        return "fault", f"fault: {texts.of_setup_line(event.of, event.number, event.name)} failed ({event.host})"
    if isinstance(event, Stop):
        return "stop", f"stop{_at(event.step)}: {texts.of_stop(event)}"
    if isinstance(event, Resized):
        return "resized", texts.of_resized(event)
    if isinstance(event, SaveFailed):
        return "warning", texts.of_save_failed(event)
    if isinstance(event, PassedOver):
        return "warning", texts.of_passed_over(event)
    if isinstance(event, Continues):
        return "end", f"continues: {texts.of_next(event)}"
    if isinstance(event, Stays):
        return "end", f"does not continue: {texts.of_next(event)}"
    return ("end", f"ended with exit code {event.code}") if isinstance(event, Ended) else None


def _at(step: int | None) -> str:
    return f" at step {step}" if step is not None and step >= 0 else ""


def attempts_table(timeline: Timeline, attempts: Iterable[tuple[int, Sequence[Entry]]]) -> list[tuple[str, ...]]:
    """Returns the rows of the table of attempts: (attempt, ranks, last step, waited, ran, ended, job) as text."""
    rows: list[tuple[str, ...]] = []
    for number, events in attempts:
        times = {
            what: sum(span.end - span.begin for span in timeline.spans if span.attempt == number and span.what in kinds)
            for what, kinds in (("waited", ("queued",)), ("ran", ("starting", "running", "restarting")))
        }
        ended, why = last(events, Ended), last(events, Fault) or last(events, Stop)
        met, progress, started = last(events, Met), last(events, Progress), last(events, Started)
        how = str(ended.code) if ended else "-"
        if how != "0" and why is not None:
            how += f": {texts.of_fault(why) if isinstance(why, Fault) else texts.of_stop(why)}"
        rows.append((
            str(number), words.value(met.ranks if met else None), words.value(progress.step if progress else None),
            words.span(times["waited"]), words.span(times["ran"]), how, started.job if started else "-",
        ))  # fmt: skip
    return rows
