"""The timeline of a report: when a run waited, started, ran and restarted, and what happened."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.reports.collect import Moment, Span, timeline
from tests.report.examples import BEGIN, at


def test_an_attempt_waits_starts_and_runs() -> None:
    journal = [at(0, "submitted", job="7")]
    events = [at(30, "started"), at(35, "met", ranks=4, members=2), at(36, "met"), at(60, "ended", code=0)]
    told = timeline(journal, [(0, events)], None)
    assert [(span.what, span.begin - BEGIN, span.end - BEGIN) for span in told.spans] == [
        ("queued", 0, 30), ("starting", 30, 35), ("running", 35, 60),
    ]  # fmt: skip
    assert told.spans[2].text == "4 ranks on 2 nodes"
    assert told.moments == (Moment(0, "end", BEGIN + 60, "ended with exit code 0"),)


@pytest.mark.parametrize(
    ("journal", "attempts", "now", "spans"),
    [
        ([], [], None, []),
        ([at(0, "submitted")], [], 50, [("queued", 0, 50)]),
        ([at(0, "submitted")], [], None, []),
        # One that began and said nothing more; whether the run is over or not.
        ([], [(0, [at(5, "started"), at(9, "met")])], None, [("starting", 5, 9), ("running", 9, 9)]),
        ([], [(0, [at(5, "started"), at(9, "met")])], 99, [("starting", 5, 9), ("running", 9, 99)]),
        # A restart in place.
        ([], [(0, [at(5, "started"), at(9, "met"), at(20, "restart"), at(21, "met"), at(30, "ended")])], None,
         [("starting", 5, 9), ("running", 9, 20), ("restarting", 20, 21), ("running", 21, 30)]),
        # It went on by itself, and waited since the end of the attempt before.
        ([at(0, "submitted")], [(0, [at(0, "started"), at(5, "ended")]), (1, [at(8, "started"), at(9, "ended")])], None,
         [("starting", 0, 5), ("queued", 5, 8), ("starting", 8, 9)]),
        # Somebody resumed it much later: nobody waited in between.
        ([at(0, "submitted"), at(70, "submitted")], [(0, [at(0, "started"), at(5, "ended")]), (1, [at(80, "started")])],
         None, [("starting", 0, 5), ("queued", 70, 80), ("starting", 80, 80)]),
        # It was resumed and waits.
        ([at(0, "submitted"), at(70, "submitted")], [(0, [at(0, "started"), at(5, "ended")])], 90,
         [("starting", 0, 5), ("queued", 70, 90)]),
        # One without a script's word.
        ([], [(0, []), (1, [at(8, "met")])], None, [("starting", 8, 8), ("running", 8, 8)]),
    ],
)  # fmt: skip
def test_spans_of_a_run(
    journal: list[dict[str, Any]], attempts: list[tuple[int, list[dict[str, Any]]]], now: float | None, spans: list[Any]
) -> None:
    told = timeline(journal, attempts, None if now is None else BEGIN + now)
    assert [(span.what, span.begin - BEGIN, span.end - BEGIN) for span in told.spans] == spans
    assert all(isinstance(span, Span) and span.end >= span.begin for span in told.spans)


@pytest.mark.parametrize("ended", [[], [at(20, "ended", code=75)]], ids=["killed", "ended"])
@pytest.mark.parametrize(
    ("journal", "since"), [([at(0, "submitted")], 20), ([at(0, "submitted"), at(30, "submitted")], 30)]
)
@pytest.mark.parametrize("now", [90, 10], ids=["", "a clock that is behind"])
def test_a_run_that_is_queued_again_does_not_run(
    ended: list[dict[str, Any]], journal: list[dict[str, Any]], since: int, now: int
) -> None:
    """A job that is preempted and requeued records no end, and may wait for days."""
    events = [at(5, "started"), at(9, "met"), at(20, "progress", step=1, total=2), *ended]
    told = timeline(journal, [(0, events)], BEGIN + now, queued=True)
    assert [(span.attempt, span.what, span.begin - BEGIN, span.end - BEGIN) for span in told.spans] == [
        (0, "queued", 0, 5), (0, "starting", 5, 9), (0, "running", 9, 20), (1, "queued", since, max(since, now)),
    ]  # fmt: skip
