"""Events with types: what is written is what is read, and what does not fit is left out and named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from launcher.failures.codes import FaultCode
from launcher.runs import event_files, events
from launcher.runs.directory import Attempt, Events, Run
from launcher.runs.events import Accused, Event, Fault, Place, Resized, Restart, SetupFailed

FAULT = Fault(
    code=FaultCode.RAISED, host="node2", node=1, rank=3, exit_code=1,
    exception="ValueError", error="ValueError: no", accused=(Accused("node2", 3), Accused("node1")), step=-1,
    traceback="Traceback", memory={"largest": 5}, ends_with=93,
)  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        FAULT,
        Resized(round=1, members=1, world_size=2, size=2, without=(Place(host="n", node=1),)),
        Fault(code=FaultCode.HANG, message="no step", seconds=3.0, rank=1, limit="launch.hang_timeout", step=5),
        Restart(code=FaultCode.SIGNALLED, signal="SIGKILL", round=2, world_size=4),
        SetupFailed(line=2, host="node1", message="line 1 of env.setup failed", code=127),
    ],
)
def test_what_is_written_is_what_is_read(tmp_path: Path, event: Event) -> None:
    attempt = Attempt(Run(tmp_path), 0)
    attempt.events_file("x").parent.mkdir(parents=True)
    Events(attempt, "x")(event)
    entries = list(event_files.read(attempt.events_file("x")))
    (found,) = events.every(entries, type(event))
    assert dataclasses.replace(found, time=0.0) == event
    assert found.time == entries[0]["time"] > 0
    assert events.last(entries, type(event)) == found


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"host": None}, "host is not text"),
        ({"code": 3}, "code is not text"),
        ({"rank": "3"}, "rank is not a whole number"),
        ({"accused": [{"rank": 3}]}, r"accused[0].host is missing"),
        ({"accused": [{"host": 3}]}, r"accused[0].host is not text"),
        ({"accused": "node1"}, "accused is not a list"),
        ({"memory": {"largest": "5"}}, "memory.largest is not a whole number"),
    ],
)
def test_an_event_that_does_not_fit_is_left_out_and_named(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    path = tmp_path / "node-0.jsonl"
    path.write_text(json.dumps({"time": 1.0, "event": "fault", **events.values(FAULT), **changes}) + "\n")
    assert list(event_files.read(path)) == []
    assert event_files.problems(path) == [f"{path}, line 1: {why}"]


def test_fields_and_codes_of_a_newer_version_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "node-0.jsonl"
    newer = {"code": "eaten_by_mice", "mice": 3, "accused": [{"host": "n", "mouse": "m"}]}
    path.write_text(json.dumps({"time": 1.0, "event": "fault", **newer}) + "\n")
    assert event_files.problems(path) == []
    (found,) = events.every(event_files.read(path), Fault)
    assert (found.code, found.accused) == (FaultCode.UNKNOWN, (Accused("n"),))
