"""What happened when: the spans of a run, and the words and numbers in which reports tell them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.failures import text as texts
from launcher.formatting import clean, long_size, plural
from launcher.formatting import number as number_text
from launcher.redaction import HIDDEN, is_secret, public
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
    Restored,
    Saved,
    SaveFailure,
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


def value_text(anything: Any) -> str:
    """Returns a value of a config or of a result as text; `-` for None."""
    if anything is None:
        return "-"
    if isinstance(anything, bool):
        return str(anything).lower()
    if isinstance(anything, float):
        return number_text(anything)
    return str(anything)


def shortened(text: str, most: int = 24) -> str:
    """Returns a text cut to at most `most` characters; a cut text ends with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def span_text(seconds: float) -> str:
    """Returns a duration as text: `0.4 s`, `12 s`, `3 min 20 s`, `5 h 02 min`, `2 d 03 h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small:02} {name}"
    return f"{whole} s"


def latency_text(seconds: float | None) -> str:
    """Returns a short time as text: `850 ns`, `12.3 µs`, `4.56 ms`, `1.2 s`; `-` for None."""
    if seconds is None:
        return "-"
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds)} s"


def rate_text(bytes_per_s: float | None) -> str:
    """Returns a data rate as text: `1.23 GB/s`; `-` for None. Units are powers of 1000, as in speeds of links."""
    if bytes_per_s is None:
        return "-"
    for unit, factor in (("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)):
        if bytes_per_s < 999.5 * factor:
            return f"{_three(bytes_per_s / factor)} {unit}"
    return f"{_three(bytes_per_s / 1e12)} TB/s"


def change_text(now: float, before: float) -> str:
    """Returns the relative change from `before` to `now` as text: `+3.1 %`, `-12 %`."""
    percent = 100 * (now / before - 1)
    text = f"{abs(percent):.1f}" if abs(percent) < 9.95 else f"{abs(percent):,.0f}"
    return f"{'-' if percent < 0 else '+'}{text} %"


def _three(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def plain_text(text: Any) -> str:
    """Returns text with HTML escaped, because plotly interprets some HTML in names, ticks and hover texts."""
    return html.escape(clean(str(text)), quote=False)


def redact_override(override: str) -> str:
    """Returns an override (`KEY=VALUE`); if a pattern of secrets matches it, with a placeholder for the value."""
    key, equals, text = override.partition("=")
    return f"{key}={HIDDEN if is_secret(override) else public(key, text)}" if equals else override


def override_value(key: str, text: str) -> str:
    """Returns the value (`text`) of the override of a key, or a placeholder if the key names a secret."""
    return public(key, text)


def flat_values(values: Any, prefix: str = "") -> dict[str, Any]:
    """Returns nested values by dotted key (`a.b.c`), below a prefix, with secrets replaced by a placeholder."""
    if not isinstance(values, dict) or not values:
        name = prefix.rpartition(".")[2]
        if isinstance(values, str):
            return {prefix: public(name, values)}
        return {prefix: HIDDEN if values is not None and is_secret(name) else values}
    return {
        key: each
        for name, inner in values.items()
        for key, each in flat_values(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }


# -- Makes the timeline of a run (spans and moments) from its journal and the events of its attempts


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
    """Returns the timeline of a run from its journal and (number, events by time) of each attempt.

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
            f"checkpoint of step {event.step}, {long_size(event.bytes)}, {latency_text(event.seconds)}",
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
    if isinstance(event, SaveFailure):
        return "warning", texts.of_save_failed(event)
    if isinstance(event, PassedOver):
        return "warning", texts.of_passed_over(event)
    if isinstance(event, Restored):
        return "restart", texts.of_restored(event)
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
            str(number), value_text(met.ranks if met else None), value_text(progress.step if progress else None),
            span_text(times["waited"]), span_text(times["ran"]), how, started.job if started else "-",
        ))  # fmt: skip
    return rows
