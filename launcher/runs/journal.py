"""Reads the submitter's journal of a run (submissions, job ids, cancellations), and for a point the sweep's journal."""

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
    """Returns the events of a run's journal as dicts, oldest first; for a point, with the submissions of its arrays.

    Raises UnavailableError: a journal cannot be read now.
    """
    own = list(event_file.read(f"{run.path}/journal.jsonl"))
    if not run.is_point:
        return own
    return sorted([*_submitted_with(run), *own], key=lambda event: float(event["time"]))


def process_of(run: Run) -> Process | None:
    """Returns the process (group leader) of the run's script, if it was started without a scheduler; else None.

    The process may have ended, and may belong to another machine.
    """
    process = last(journal_events(run), ProcessStarted)
    return None if process is None else Process(process.pid, process.start, process.host)


def _submitted_with(run: Run) -> Iterator[dict[str, Any]]:
    sweep = sweep_of(run)
    if sweep is None:
        return
    journal = sweep.path / "journal.jsonl"
    if (status := unwrap(retry_read(journal.stat, journal))) is not None:
        yield from _entries(sweep, status.st_ino, status.st_size).get(int(run.path.name), ())


@lru_cache(maxsize=4)
def _entries(sweep: Sweep, _inode: int, _size: int) -> dict[int, list[dict[str, Any]]]:
    # Cached until the journal's inode or size changes, so that reading all points of a sweep parses it once
    entries: dict[int, list[dict[str, Any]]] = {}
    for each in sweep.submissions():
        for number, index in enumerate(each.points):
            found = entries.setdefault(index, [])
            found.append(event_file.entry(Submitting(time=each.time, token=each.token)))
            if each.job is not None:
                found.append(event_file.entry(Submitted(time=each.time, job=element_id(each.job, number))))
    return entries
