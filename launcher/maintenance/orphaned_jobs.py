"""Jobs in a queue whose run is gone: somebody has deleted its directory, and the job goes on.

A job of the launcher has a token, which is made of its directory, and a script in it. Of the jobs that no known run
accounts for the scheduler is asked for both; only these tell a job without a run from one whose run is kept elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.files.shared_files import exists, unwrap
from launcher.monitoring.live import PATIENCE, Live
from launcher.runs.directory import TOKEN, token_of
from launcher.runs.lookup import RECORDS
from launcher.schedulers import registry
from launcher.schedulers.base import JobOrigin, Queries, QueryError, SchedulerJob
from launcher.schedulers.query_cache import Shared

MOST = 20  # jobs of one scheduler that are asked about
_JOB = re.compile(r"(\d+)(?:_\d+|\[\d*\])?(?:\.\S*)?")  # 17, 17_3, 17.server, 17[].server, 17[3].server


@dataclass(frozen=True)
class Orphan:
    """A job, or an array, without a run.

    Attributes:
        scheduler: its name.
        job: its id.
        word: its state, in the scheduler's word.
        folder: where its run was.
    """

    scheduler: str
    job: str
    word: str
    folder: Path


def schedulers() -> dict[str, Queries]:
    """Those whose commands are here."""
    return {name: each.queries(PATIENCE) for name, each in registry.queues_here().items()}


def family(job_id: str) -> str:
    """A job's number without array index and server: `17` for 17_3 and 17[3].server. Pure."""
    match = _JOB.fullmatch(job_id)
    return match[1] if match else job_id


def unaccounted(jobs: Mapping[str, SchedulerJob], accounted: Collection[str]) -> dict[str, SchedulerJob]:
    """One live job for each job number that no id in `accounted` belongs to, by number. Pure.

    Jobs whose comment is not a token of the launcher are left out: the user's other jobs cost no further query.
    """
    ours = {family(each) for each in accounted}
    found: dict[str, SchedulerJob] = {}
    for job_id, job in jobs.items():
        may_be_ours = job.comment is None or job.comment.startswith(TOKEN)
        if job.state.live and may_be_ours and family(job_id) not in ours:
            found.setdefault(family(job_id), job)
    return found


def folder_of(origin: JobOrigin) -> Path | None:
    """The directory of the run or sweep that a job comes from; None: it is not the launcher's. Pure.

    | its script | the directory |
    |---|---|
    | RUN/script.sh | RUN |
    | SWEEP/arrays/TOKEN.sh | SWEEP |
    """
    folder = Path(origin.file).parent
    folder = folder.parent if folder.name == "arrays" else folder
    ours = (token_of(str(each)) for each in (folder, folder.parent))  # a point alone may have its sweep's token
    return folder if any(f"{origin.token}-".startswith(f"{each}-") for each in ours) else None


def is_gone(folder: Path) -> bool:
    """Whether there is no run and no sweep in a directory.

    Raises:
        UnavailableError: nobody can tell now.
    """
    return not any(unwrap(exists(folder / name)) for name in RECORDS.values())


class Orphans:
    """Looks for jobs without a run again and again, and asks once about each that has one."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._others: set[tuple[str, str]] = set()  # families that are not ours, or have their run

    def look(self, accounted: Collection[str]) -> list[Orphan]:
        """The jobs that have no run, as far as schedulers answer.

        Args:
            accounted: ids of jobs of known runs.
        """
        found: list[Orphan] = []
        for name, asks in schedulers().items():
            answer = self._live.answer(name, asks, PATIENCE)
            jobs = {} if answer.problem else unaccounted(answer.jobs, accounted)
            jobs = {each: job for each, job in jobs.items() if (name, each) not in self._others}
            if not jobs:
                continue
            newest = sorted(jobs, key=lambda number: (len(number), number))[-MOST:]
            try:
                origins = asks.origins(newest)
            except QueryError:  # the next look may tell
                continue
            for each in newest:
                origin = origins.get(each)
                folder = None if origin is None else folder_of(origin)
                if origin is not None and folder is not None and is_gone(folder):
                    found.append(Orphan(name, origin.id, jobs[each].word, folder))
                else:
                    self._others.add((name, each))
        return found


def look_for(job_id: str) -> Orphan | Path | None:
    """What the user's job with this id is: an orphan, or a job of the run or sweep in this directory; None: there is
    no such job, or it is not the launcher's.

    Raises:
        QueryError: a scheduler does not answer, so that nobody can tell.
    """
    number = family(job_id)
    if not number.isdecimal():
        return None
    problem: QueryError | None = None
    for name, asks in schedulers().items():
        try:
            origin = asks.origins([number]).get(number)
        except QueryError as error:
            problem = error
            continue
        if origin is not None and (folder := folder_of(origin)) is not None:
            return Orphan(name, origin.id, "", folder) if is_gone(folder) else folder
    if problem is not None:
        raise problem
    return None


def cancel(orphan: Orphan) -> None:
    """Asks its scheduler to end it.

    Raises:
        QueryError: it does not answer, or refuses.
    """
    schedulers()[orphan.scheduler].cancel(orphan.job)
    Shared(orphan.scheduler).forget()
