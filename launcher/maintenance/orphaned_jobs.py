"""Finds orphaned jobs: jobs that are queued or running although somebody has deleted their run directory.

A job of the launcher has a token, which is derived from its run directory, and a script in that directory. For each job
that belongs to no known run, both are queried from the scheduler. They tell an orphan from a job whose run directory is
in another folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.files.shared_files import exists, unwrap
from launcher.monitoring.run_status import QUERY_TIMEOUT, JobMonitor
from launcher.runs.directory import TOKEN, token_of
from launcher.runs.lookup import RECORDS
from launcher.schedulers import registry
from launcher.schedulers.base import JobOrigin, Queries, QueryError, SchedulerJob
from launcher.schedulers.query_cache import SharedSnapshot

MOST = 20  # jobs of one scheduler whose origin is queried at a time
_JOB = re.compile(r"(\d+)(?:_\d+|\[\d*\])?(?:\.\S*)?")  # 17, 17_3, 17.server, 17[].server, 17[3].server


@dataclass(frozen=True)
class Orphan:
    """A job, or an array, whose run directory is gone."""

    scheduler: str  # the scheduler's name
    job: str  # the job's id
    raw_state: str  # the job's state, as the scheduler prints it; empty: not known
    folder: Path  # path that the run or sweep directory had


def schedulers(others: Iterable[str] = ()) -> dict[str, Queries]:
    """Returns the schedulers whose commands are here, by name: ours, and these of other packages."""
    return {name: each.queries(QUERY_TIMEOUT) for name, each in registry.queues_here(others).items()}


def family(job_id: str) -> str:
    """Returns a job's number without array index and server: `17` for 17_3 and 17[3].server."""
    match = _JOB.fullmatch(job_id)
    return match[1] if match else job_id


def unaccounted(jobs: Mapping[str, SchedulerJob], accounted: Collection[str]) -> dict[str, SchedulerJob]:
    """Returns the queue's live jobs outside of `accounted`, by job number; one of each array.

    Jobs whose comment is not a token of the launcher are left out, so that the user's other jobs cost no query.
    """
    ours = {family(each) for each in accounted}
    found: dict[str, SchedulerJob] = {}
    for job_id, job in jobs.items():
        may_be_ours = job.comment is None or job.comment.startswith(TOKEN)
        if job.state.live and may_be_ours and family(job_id) not in ours:
            found.setdefault(family(job_id), job)
    return found


def folder_of(origin: JobOrigin) -> Path | None:
    """Returns the directory of the run or sweep that a job belongs to; None: not a job of the launcher.

    | the job's script | the directory |
    |---|---|
    | RUN/script.sh | RUN |
    | SWEEP/arrays/TOKEN.sh | SWEEP |
    """
    folder = Path(origin.file).parent
    folder = folder.parent if folder.name == "arrays" else folder
    # The job of a single point may have its sweep's token.
    ours = (token_of(str(each)) for each in (folder, folder.parent))
    return folder if any(f"{origin.token}-".startswith(f"{each}-") for each in ours) else None


def is_gone(folder: Path) -> bool:
    """Returns whether a directory contains neither a run nor a sweep."""
    return not any(unwrap(exists(folder / name)) for name in RECORDS.values())


class Orphans:
    """Finds orphaned jobs, call after call. The origin of a job that is not an orphan is queried only once."""

    def __init__(self, live: JobMonitor) -> None:
        self._live = live
        self._others: set[tuple[str, str]] = set()  # (scheduler, job number) of jobs that are no orphans

    def look(self, accounted: Collection[str]) -> list[Orphan]:
        """Returns the orphaned jobs of all schedulers that respond."""
        found: list[Orphan] = []
        for name, queries in schedulers(self._live.queried).items():
            snapshot = self._live.snapshot(name, queries, QUERY_TIMEOUT)
            jobs = {} if snapshot.problem else unaccounted(snapshot.jobs, accounted)
            jobs = {each: job for each, job in jobs.items() if (name, each) not in self._others}
            if not jobs:
                continue
            newest = sorted(jobs, key=lambda number: (len(number), number))[-MOST:]
            try:
                origins = queries.origins(newest)
            except QueryError:  # the next call may succeed
                continue
            for each in newest:
                origin = origins.get(each)
                folder = None if origin is None else folder_of(origin)
                if origin is not None and folder is not None and is_gone(folder):
                    found.append(Orphan(name, origin.id, jobs[each].raw_state, folder))
                else:
                    self._others.add((name, each))
        return found


def look_for(job_id: str) -> Orphan | Path | None:
    """Looks for a job by its id in all schedulers.

    Returns the job if it is an orphan, else the directory of its run or sweep; None: it is not a job of this user and
    the launcher. Raises QueryError: it was not found, and a scheduler did not respond.
    """
    number = family(job_id)
    if not number.isdecimal():
        return None
    problem: QueryError | None = None
    for name, queries in schedulers(registry.names()).items():
        try:
            origin = queries.origins([number]).get(number)
        except QueryError as error:
            problem = error
            continue
        if origin is not None and (folder := folder_of(origin)) is not None:
            return Orphan(name, origin.id, "", folder) if is_gone(folder) else folder
    if problem is not None:
        raise problem
    return None


def cancel(orphan: Orphan) -> None:
    """Cancels an orphaned job. Raises QueryError: the scheduler does not respond, or refuses."""
    schedulers([orphan.scheduler])[orphan.scheduler].cancel(orphan.job)
    SharedSnapshot(orphan.scheduler).forget()
