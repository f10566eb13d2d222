"""Finds the events of a kind among the dicts that `event_file.read` yields. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.runs.event_json import E_, from_entry
from launcher.runs.events.failures import Fault, SetupFailed


def every(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> list[E_]:
    """Returns all events of a kind, in their order."""
    return [event for entry in entries if (event := as_kind(entry, kind)) is not None]


def last(entries: Sequence[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """Returns the last event of a kind; None: no event is of this kind."""
    return next((event for entry in reversed(entries) if (event := as_kind(entry, kind)) is not None), None)


def first(entries: Iterable[Mapping[str, Any]], kind: type[E_]) -> E_ | None:
    """Returns the first event of a kind; None: no event is of this kind."""
    return next((event for entry in entries if (event := as_kind(entry, kind)) is not None), None)


def as_kind(entry: Mapping[str, Any], kind: type[E_]) -> E_ | None:
    """Returns a dict as an event of class `kind`; None: the event is of another kind."""
    event = from_entry(entry) if entry["event"] == kind.event else None
    return event if isinstance(event, kind) else None


def first_fault(entries: Iterable[Mapping[str, Any]]) -> Fault | SetupFailed | None:
    """Returns the first event `fault` or `setup_failed`; None: neither is there."""
    for entry in entries:
        if entry["event"] in (Fault.event, SetupFailed.event):
            return as_kind(entry, Fault) or as_kind(entry, SetupFailed)
    return None
