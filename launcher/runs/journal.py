"""Reads the submitter's journal of a run; for a point of a sweep, the sweep's journal too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from launcher.files.shared_files import retry_read, unwrap
from launcher.processes.groups import Process
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.runs.events import ProcessStarted, Submitted, Submitting, last
from launcher.runs.sweep_directory import Sweep, element_id, sweep_of


def journal_events(run: Run) -> list[dict[str, Any]]:
    """Returns the events of a run's journal; for a point, also those of the arrays that it was an element of.

    Raises:
        UnavailableError: a journal cannot be read now.
    """
    own = list(event_file.read(f"{run.path}/journal.jsonl"))
    if not run.is_point:
        return own
    return sorted([*_submitted_with(run), *own], key=lambda event: float(event["time"]))


def process_of(run: Run) -> Process | None:
    """Returns the leader of the process group that last ran the run's script on this machine; None: there is none."""
    process = last(journal_events(run), ProcessStarted)
    return None if process is None else Process(process.pid, process.start, process.host)


def _submitted_with(run: Run) -> Iterator[dict[str, Any]]:
    """Yields the events of the arrays that this run was an element of; none for runs that are no points."""
    sweep = sweep_of(run)
    if sweep is None:
        return
    journal = sweep.path / "journal.jsonl"
    if (status := unwrap(retry_read(journal.stat, journal))) is not None:
        yield from _entries(sweep, status.st_ino, status.st_size).get(int(run.path.name), ())


@lru_cache(maxsize=4)
def _entries(sweep: Sweep, _inode: int, _size: int) -> dict[int, list[dict[str, Any]]]:
    """Returns the events by point. Cached while the journal does not grow: a look at all points reads it once."""
    entries: dict[int, list[dict[str, Any]]] = {}
    for each in sweep.submissions():
        for number, index in enumerate(each.points):
            found = entries.setdefault(index, [])
            found.append(event_file.entry(Submitting(time=each.time, token=each.token)))
            if each.job is not None:
                found.append(event_file.entry(Submitted(time=each.time, job=element_id(each.job, number))))
    return entries
