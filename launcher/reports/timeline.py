"""What happened when: the journal and the attempts' events as spans and moments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.formatting import long_size, plural
from launcher.reports import words

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """`attempt` was `what` (queued, starting, running, restarting) from `begin` to `end`, in Unix seconds."""

    attempt: int
    what: str
    begin: float
    end: float
    text: str = ""


@dataclass(frozen=True)
class Moment:
    """Something that happened at once: checkpoint, stop, fault, restart, resized, warning, end."""

    attempt: int
    kind: str
    time: float
    text: str


@dataclass(frozen=True)
class Timeline:
    spans: tuple[Span, ...]
    moments: tuple[Moment, ...]

    @property
    def begin(self) -> float | None:
        return min((span.begin for span in self.spans), default=None)

    @property
    def end(self) -> float | None:
        return max((span.end for span in self.spans), default=None)

    def total(self, what: str) -> float:
        """Seconds of all spans of a kind."""
        return sum(span.end - span.begin for span in self.spans if span.what == what)


def timeline(journal: Sequence[Event], attempts: Sequence[tuple[int, Sequence[Event]]], now: float | None) -> Timeline:
    """The run's history.

    Args:
        journal: the submitter's events.
        attempts: number and events, by time, of each attempt.
        now: the time, for a run that is not over; None: it is over, and its last word is its end.
    """
    submitted = [time for event in journal if event.get("event") == "submitted" and (time := _time(event)) is not None]
    spans: list[Span] = []
    moments: list[Moment] = []
    before: float | None = None  # when the attempt before ended
    for place, (number, events) in enumerate(attempts):
        timed = [event for event in events if _time(event) is not None]
        if not timed:
            continue
        last = place + 1 == len(attempts)
        began = _time(next((event for event in timed if event.get("event") == "started"), timed[0])) or 0.0
        if (waited := _queued_since(submitted, before, began)) is not None and waited < began:
            spans.append(Span(number, "queued", waited, began))
        ended = next((event for event in timed if event.get("event") == "ended"), None)
        end = _time(ended) if ended else now if last and now is not None else _time(timed[-1])
        spans += _spans(number, timed, began, max(end or began, began))
        moments += [moment for event in timed if (moment := _moment(number, event)) is not None]
        before = spans[-1].end
    if now is not None and submitted and (not attempts or (before is not None and submitted[-1] > before)):
        spans.append(Span(1 + max((number for number, _ in attempts), default=-1), "queued", submitted[-1], now))
    return Timeline(tuple(spans), tuple(moments))


def _queued_since(submitted: Sequence[float], before: float | None, began: float) -> float | None:
    """When the wait for an attempt began: at the submission of its job, or when the one before had ended.

    | since the end of the attempt before | the wait began |
    |---|---|
    | somebody has submitted the run | then |
    | nobody has: it went on by itself | at that end |
    | (there was none) | at the last submission before it |
    """
    known = [time for time in submitted if time <= began and (before is None or time >= before)]
    return known[-1] if known else before


def _spans(number: int, events: Sequence[Event], began: float, end: float) -> list[Span]:
    spans: list[Span] = []
    what, since, text = "starting", began, ""
    for event in events:
        name, time = event.get("event"), _time(event) or began
        if name == "met" and what != "running":
            spans.append(Span(number, what, since, max(since, time), text))
            ranks, members = event.get("ranks", "?"), event.get("members", "?")
            what, since, text = "running", max(since, time), f"{plural(ranks, 'rank')} on {plural(members, 'node')}"
        elif name == "restart" and what == "running":
            spans.append(Span(number, what, since, max(since, time), text))
            what, since, text = "restarting", max(since, time), str(event.get("cause", ""))
    return [*spans, Span(number, what, since, max(since, end), text)]


def _moment(number: int, event: Event) -> Moment | None:
    """An event that is worth a mark; None: it is not."""
    name, time = event.get("event"), _time(event) or 0.0
    cause = str(event.get("cause", ""))
    at = f" at step {step}" if isinstance(step := event.get("step"), int) and step >= 0 else ""
    if name == "saved":
        cost = f", {long_size(event.get('bytes') or 0)}, {words.latency(event.get('seconds'))}"
        return Moment(number, "checkpoint", time, f"checkpoint of step {step}{cost}")
    if name == "stop":
        return Moment(number, "stop", time, f"stop{at}: {cause}")
    if name in ("fault", "setup_failed"):
        host = f" ({event['host']})" if "host" in event and str(event["host"]) not in cause else ""
        return Moment(number, "fault", time, f"fault{at}: {cause or name}{host}")
    if name == "restart":
        return Moment(number, "restart", time, f"restart in place{at}, round {event.get('round', '?')}: {cause}")
    if name == "resized":
        return Moment(number, "resized", time, cause)
    if name in ("save_failed", "passed_over"):
        told = "a save failed" if name == "save_failed" else "a checkpoint was passed over"
        return Moment(number, "warning", time, f"{told}{at}: {event.get('reason', '')}")
    if name in ("again", "stays"):
        return Moment(number, "end", time, ("goes on: " if name == "again" else "stays: ") + str(event.get("why", "")))
    if name == "ended":
        return Moment(number, "end", time, f"ended with exit code {event.get('code', '?')}")
    return None


def attempts_table(timeline: Timeline, attempts: Iterable[tuple[int, Sequence[Event]]]) -> list[tuple[str, ...]]:
    """(attempt, ranks, last step, waited, ran, ended, job) of each attempt, as text."""
    rows: list[tuple[str, ...]] = []
    for number, events in attempts:
        last = {event.get("event"): event for event in events}
        times = {
            what: sum(span.end - span.begin for span in timeline.spans if span.attempt == number and span.what in kinds)
            for what, kinds in (("waited", ("queued",)), ("ran", ("starting", "running", "restarting")))
        }
        why = last.get("fault") or last.get("stop") or {}
        ended = str(last["ended"].get("code", "?")) if "ended" in last else "-"
        if ended != "0" and "cause" in why:
            ended += f": {why['cause']}"
        rows.append((
            str(number), words.value(last.get("met", {}).get("ranks")),
            words.value(last.get("progress", {}).get("step")), words.span(times["waited"]), words.span(times["ran"]),
            ended, str(last.get("started", {}).get("job", "-")),
        ))  # fmt: skip
    return rows


def _time(event: Event) -> float | None:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) and not isinstance(time, bool) else None
