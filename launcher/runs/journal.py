"""What the submitter did with a run: its journal, and of a point also what that of its sweep has of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from launcher.files.shared_files import retry_read, unwrap
from launcher.processes.groups import Process
from launcher.runs import event_file
from launcher.runs.directory import Run
from launcher.runs.events import ProcessStarted, Submitted, Submitting, last
from launcher.runs.sweep_directory import Sweep, sweep_of


def journal_events(run: Run) -> list[dict[str, Any]]:
    """What the submitter did; of a point also what it did with the whole sweep.

    Raises:
        UnavailableError: it cannot be read now.
    """
    own = list(event_file.read(f"{run.path}/journal.jsonl"))
    if not run.is_point:
        return own
    return sorted([*_submitted_with(run), *own], key=lambda event: float(event["time"]))


def process_of(run: Run) -> Process | None:
    """The leader of the process group that runs its script on this machine, as its journal tells last."""
    told = last(journal_events(run), ProcessStarted)
    return None if told is None else Process(told.pid, told.start, told.host)


def _submitted_with(run: Run) -> Iterator[dict[str, Any]]:
    """The journal's entries of arrays that this run was an element of; none unless it is a point of a sweep."""
    sweep = sweep_of(run)
    if sweep is None:
        return
    journal = sweep.path / "journal.jsonl"
    if (status := unwrap(retry_read(journal.stat, journal))) is not None:
        yield from _entries(sweep, status.st_ino, status.st_size).get(int(run.path.name), ())


@lru_cache(maxsize=4)
def _entries(sweep: Sweep, _inode: int, _size: int) -> dict[int, list[dict[str, Any]]]:
    """Entries for each point, of a journal that has not grown since: whoever looks at all points reads it once."""
    entries: dict[int, list[dict[str, Any]]] = {}
    for each in sweep.submissions():
        for index in each.points:
            found = entries.setdefault(index, [])
            found.append(event_file.entry(Submitting(time=each.time, token=each.token)))
            if (job := each.job_of(index)) is not None:
                found.append(event_file.entry(Submitted(time=each.time, job=job)))
    return entries
