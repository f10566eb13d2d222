"""The golden files hold all that there is: every kind of event, of failure, and every state of a run."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.failures.codes import EndKind, FaultCode
from launcher.monitoring.run_status import RunState
from launcher.runs.events import TYPES
from tests.golden.golden import FORMATS


def golden_events() -> Iterator[dict[str, Any]]:
    """Yields all events in the golden files of events."""
    for path in (FORMATS / "written").rglob("*"):
        if path.suffix == ".jsonl" or path.parent.name == "events":
            for line in path.read_text().splitlines():
                yield json.loads(line[line.index("{") :])


def test_every_kind_of_event_is_in_a_golden_file() -> None:
    assert {event["event"] for event in golden_events()} == TYPES.keys()


def test_every_field_of_an_event_is_in_a_golden_file() -> None:
    seen: dict[str, set[str]] = {}
    for event in golden_events():
        seen.setdefault(event["event"], set()).update(event)
    seen["restart"] |= seen["fault"]  # the same, and more
    missing = {kind: sorted({each.name for each in dataclasses.fields(TYPES[kind])} - seen[kind]) for kind in TYPES}
    assert {kind: keys for kind, keys in missing.items() if keys} == {}


# Those of nodes and of the system; a test of its own writes each.
ELSEWHERE = {
    FaultCode.RETURNED_EARLY, FaultCode.LEFT, FaultCode.NOT_STARTED, FaultCode.STILL_THERE, FaultCode.NOT_JOINED,
    FaultCode.NODE_SILENT, FaultCode.LEADER_LOST, FaultCode.RENDEZVOUS_TIMEOUT, FaultCode.NOT_REACHED,
    FaultCode.TOO_FEW, FaultCode.LATE, FaultCode.NOT_A_MEMBER, FaultCode.REFUSED, FaultCode.PREFLIGHT,
    FaultCode.CONTAINER, FaultCode.ARCHIVE, FaultCode.UNREADABLE, FaultCode.CONDITION_FAILED, FaultCode.AGENT,
    FaultCode.TASK_NOT_STARTED, FaultCode.TASK_UNKNOWN, FaultCode.UNKNOWN, FaultCode.OPEN_FILES,
}  # fmt: skip


@pytest.mark.parametrize("code", sorted({*FaultCode} - ELSEWHERE))
def test_the_codes_of_ranks_that_fail_are_in_golden_files(code: FaultCode) -> None:
    assert code.value in {event.get("code") for event in golden_events()}


def values(command: str, key: str) -> set[str]:
    """Returns all values of a key in the golden JSON output of a command."""
    text = (FORMATS / "json_output" / f"{command}.jsonl").read_text()
    return set(re.findall(rf'"{key}": "([^"]*)"', text))


@pytest.mark.parametrize("kind", [kind.value for kind in EndKind if kind is not EndKind.DONE])
def test_every_kind_of_end_is_in_a_golden_file(kind: str) -> None:
    assert kind in values("post-mortem", "kind")


def test_every_state_of_a_run_is_in_a_golden_file() -> None:
    assert {state.value for state in RunState} <= values("status", "state")
