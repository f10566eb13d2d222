"""Runs as they are now: their records, and one question to each scheduler for all of them.

What a scheduler is asked, in this order, and no more of it than is needed:

1. all jobs of the user (`squeue`, where that fails `scontrol`, or `qstat`), which commands share
(launcher/schedulers/query_cache.py); 2. the ends of the jobs that it has forgotten, and whose runs do not tell their
own (`sacct`, or the history of PBS).

Where it does not answer, or remembers nothing, the run's own record is what there is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from launcher import errors
from launcher.environment import secrets
from launcher.errors import LauncherError, RunError
from launcher.files import ownership
from launcher.files.shared_files import is_transient
from launcher.monitoring.state import RunState, Story, run_state, tell
from launcher.runs.directory import Run
from launcher.runs.events import CancelFailed, Cancelled, Ended, Progress, every
from launcher.runs.journal import journal_events, process_of
from launcher.schedulers import registry
from launcher.schedulers.base import AnswerLost, JobState, Queries, QueryError, SchedulerJob
from launcher.schedulers.query_cache import QUICKEST, Answer, Shared, ask, interval
from launcher.spec.plan import JobPlan

SCHEDULER_INTERVAL = QUICKEST  # seconds for which a scheduler's answer is good enough
PATIENCE = 10.0  # seconds that a question about states may take; whoever submits waits longer (cluster.submit_timeout)
TELL = 3.0  # seconds of waiting after which that is told
ENDING = 60.0  # seconds after an attempt's end in which that of its job is expected, or another one
APART = 5.0  # seconds by which clocks of machines may differ
ENDS = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)  # of jobs, after which nothing else comes
# What a record may lead to that was cut off or changed at any place; `unreadable` says which record.
DAMAGE = (
    LauncherError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError,
    RecursionError,
)  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """One run as it is now.

    Attributes:
        word: the scheduler's own word, when it adds something (`PENDING (Resources)`), or why it does not answer.
        progress: the last progress event of rank 0.
        left: seconds of wall time that the scheduler says are left.
        unanswered: the scheduler that did not answer; empty: it did, or was not asked.
        before: what it said of the job when it answered last.
        age: seconds since it was asked for what is known of it.
    """

    run: Run
    plan: JobPlan
    story: Story
    state: RunState
    word: str
    progress: Progress | None
    left: int | None = None
    unanswered: str = ""
    before: str = ""
    age: float | None = None

    @property
    def exit_code(self) -> int:
        """What a command that waited for the run exits with."""
        if self.state is RunState.FAILED and self.story.code == errors.NO_RETRY:
            return errors.NO_RETRY
        return self.state.exit_code


@dataclass(frozen=True)
class Damaged:
    """A run of which something cannot be read; `words` say what, and what to do.

    `is_transient`: it may be read later, so nothing is known of the run, not even that it is damaged.
    """

    run: Run
    words: str
    is_transient: bool = False


def queries(plan: JobPlan, patience: float | None = None) -> Queries:
    """How the plan's scheduler is asked, and how many seconds that may take (None: as for a submission)."""
    timeout = plan.cluster.submit_timeout if patience is None else min(patience, plan.cluster.submit_timeout)
    return registry.queue(plan.cluster.scheduler).queries(timeout)


def forget(plan: JobPlan) -> None:
    """What the plan's scheduler said counts no more, in no command: its jobs were changed."""
    Shared(plan.cluster.scheduler).forget()


class Live:
    """Asks schedulers, no more often than needed: every 2 s at first, and every 60 s while nothing changes.

    Args:
        share: answers may be those that other commands have got, and are kept for them. Not for a command that acts
            upon what it hears.
    """

    def __init__(self, *, share: bool = False) -> None:
        self._share = share
        self._answers: dict[str, Answer] = {}
        self._unchanged: dict[str, int] = {}
        self._signs: dict[Run, tuple[object, ...]] = {}
        self._remembered: dict[tuple[str, str], tuple[float, SchedulerJob | QueryError | None]] = {}
        self._told = False

    @property
    def asked(self) -> Collection[str]:
        """The schedulers that were asked about runs."""
        return self._answers.keys()

    def job(self, run: Run, plan: JobPlan, story: Story) -> tuple[JobState | None, str, bool]:
        """State of the run's job (None: no such job), the scheduler's word on it, and whether it answered."""
        if not plan.queued:
            process = process_of(run)
            if process is None:
                return None, "", True
            if not process.here():
                return JobState.UNKNOWN, f"it runs on {process.host}", False
            return (JobState.RUNNING, "", True) if process.alive() else (None, "", True)
        if story.job_id is None:
            return None, "", True
        key = queries(plan).key(story.job_id)
        answer = self._ask(plan, quick=self._has_moved(run, story))
        job = answer.jobs.get(key)
        if not answer.problem and (job is None or not job.state.live) and _older(answer, story):
            answer = self._ask(plan, newer=time.time())
            job = answer.jobs.get(key)
        if answer.problem:
            return None, answer.problem, False
        if _open_end(story) and (job is None or job.state is JobState.GONE):
            try:
                job = self.ended(plan, story.job_id) or job
            except QueryError as error:
                return None, str(error), False
        if job is None:
            return None, "", True
        return job.state, _word(job), True

    def details(self, plan: JobPlan, story: Story) -> tuple[int | None, str, float | None]:
        """What was heard of the job besides its state: `left`, `before` and `age` of Seen."""
        answer = self._answers.get(plan.cluster.scheduler)
        if answer is None or story.job_id is None or not plan.queued:
            return None, "", None
        job = answer.jobs.get(queries(plan).key(story.job_id))
        age = None if answer.asked is None else max(0.0, time.time() - answer.asked)
        left = None if job is None or job.left is None or age is None else max(0, int(job.left - age))
        return left, _word(job) if job else "", age

    def remember(self, wanted: Iterable[tuple[JobPlan, Story]]) -> None:
        """Asks once for the ends of all these runs' jobs that their scheduler has forgotten, if there are several."""
        gone: dict[str, tuple[JobPlan, list[str]]] = {}
        for plan, story in wanted:
            if plan.queued and story.job_id is not None and _open_end(story):
                answer, key = self._ask(plan), queries(plan).key(story.job_id)
                job = answer.jobs.get(key)
                known = self._knows(plan.cluster.scheduler, key)
                if not (answer.problem or known) and (job is None or job.state is JobState.GONE):
                    gone.setdefault(plan.cluster.scheduler, (plan, []))[1].append(story.job_id)
        for scheduler, (plan, job_ids) in gone.items():
            if len(job_ids) < 2:
                continue
            ends: Mapping[str, SchedulerJob] | QueryError
            try:
                with self._patiently(scheduler):
                    ends = queries(plan, PATIENCE).ended_all(job_ids)
            except QueryError as error:
                ends = error
            now = time.monotonic()
            for key in map(queries(plan).key, job_ids):
                self._remembered[scheduler, key] = now, ends if isinstance(ends, QueryError) else ends.get(key)

    def ended(self, plan: JobPlan, job_id: str) -> SchedulerJob | None:
        """What the plan's scheduler remembers of a job that is over.

        Raises:
            QueryError: it does not answer.
        """
        asks = queries(plan, PATIENCE)
        place = plan.cluster.scheduler, asks.key(job_id)
        known: SchedulerJob | QueryError | None
        if self._knows(*place):
            known = self._remembered[place][1]
        else:
            try:
                known = asks.ended(job_id)
            except QueryError as error:
                known = error
            self._remembered[place] = time.monotonic(), known
        if isinstance(known, QueryError):
            raise known
        return known

    def _knows(self, scheduler: str, key: str) -> bool:
        """Whether its end need not be asked for: it was told, or nobody could tell a moment ago."""
        when, known = self._remembered.get((scheduler, key), (float("-inf"), None))
        final = isinstance(known, SchedulerJob) and known.state in ENDS
        return final or time.monotonic() - when <= self._good_for(scheduler)

    def _has_moved(self, run: Run, story: Story) -> bool:
        """Whether the run's own record tells that its job may be in another state than before."""
        signs = (story.job_id, story.attempt, story.ended, story.cancelled)
        before, self._signs[run] = self._signs.get(run, signs), signs
        ends = story.ended is not None and time.time() - story.moved < ENDING  # or it would be asked about for ever
        return before != signs or ends

    def _ask(self, plan: JobPlan, *, quick: bool = False, newer: float = 0.0) -> Answer:
        """All jobs that the plan's scheduler knows, or why it does not answer.

        Args:
            plan: whose scheduler it is.
            quick: something has changed, so what was heard is good for a short time only.
            newer: what was asked for before that time does not count.
        """
        timeout = min(PATIENCE, plan.cluster.submit_timeout)
        return self.answer(plan.cluster.scheduler, queries(plan, PATIENCE), timeout, quick=quick, newer=newer)

    def answer(self, name: str, asks: Queries, timeout: float, *, quick: bool = False, newer: float = 0.0) -> Answer:
        """All of this user's jobs that a scheduler knows, or why it does not answer.

        Args:
            name: of the scheduler.
            asks: asks it.
            timeout: seconds that this may take.
            quick, newer: see `_ask`.
        """
        before = self._answers.get(name)
        if quick:
            self._unchanged[name] = 0
        unchanged = self._unchanged.get(name, 0)
        good_for = self._good_for(name)
        if before and before.good(good_for, time.time()) and (before.problem or (before.asked or 0.0) >= newer):
            return before
        with self._patiently(name):
            if self._share:
                answer = Shared(name).get(good_for, asks.jobs, timeout + 1, newer=newer)
            else:
                answer = ask(asks.jobs, before)
        same = before is not None and (before.jobs, before.problem) == (answer.jobs, answer.problem)
        self._unchanged[name] = unchanged + 1 if same else 0
        self._answers[name] = answer
        return answer

    def _good_for(self, scheduler: str) -> float:
        """Seconds for which what this scheduler said is good enough."""
        before = self._answers.get(scheduler)
        return interval(self._unchanged.get(scheduler, 0), before.took if before else 0.0, SCHEDULER_INTERVAL)

    @contextlib.contextmanager
    def _patiently(self, scheduler: str) -> Iterator[None]:
        """Says once on stderr that a scheduler is waited for, when that takes long."""

        def tell() -> None:
            self._told = True
            print(f"launcher: waiting for {scheduler} to answer, up to {PATIENCE:g} s", file=sys.stderr, flush=True)

        if self._told:
            yield
            return
        timer = threading.Timer(TELL, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def cancel(self, run: Run, *, kill: bool = False) -> None:
        """Asks the run's scheduler to end its job.

        Raises:
            RunError: it has no job, it runs on another machine, or its directory is not the user's own.
            QueryError: the scheduler does not answer.
            OSError: that it is cancelled cannot be noted, on a full disk say. Its job is ended nonetheless.
        """
        ownership.require_own(run.path, "cancel it")
        plan, story = run.plan(), read(run)
        try:
            run.journal(cancelled())
            run.mark("cancelled")  # or it would go on in another attempt
        finally:
            try:
                self._end(run, plan, story, kill)
            except AnswerLost:  # its job may end all the same, and is not to begin another attempt then
                raise
            except LauncherError as error:
                run.unmark("cancelled")
                run.journal(CancelFailed(error=str(error)))
                raise

    def _end(self, run: Run, plan: JobPlan, story: Story, kill: bool) -> None:
        """Ends the run's job, and those of its chain; raises as `cancel` does."""
        if not plan.queued:
            process = process_of(run)
            if process is not None and not process.here():
                raise RunError(f"{run.id} runs on {process.host}: cancel it there")
            if process is not None:
                process.signal(signal.SIGKILL if kill else signal.SIGTERM)
            return
        scheduler = queries(plan)
        job_id = story.job_id or scheduler.find(run.record()["token"], plan.name)
        if job_id is None:
            raise RunError(f"{run.id} has no job")
        try:
            for each in (job_id, *story.waiting):
                scheduler.cancel(each)
        finally:
            forget(plan)
        secrets.forget(plan.run_dir, plan.secrets_dir)


def _open_end(story: Story) -> bool:
    """Whether only the scheduler knows how the job ended: the run's own word is enough, unless it was told to stop."""
    return story.ended is None or story.ended > 128


def _older(answer: Answer, story: Story) -> bool:
    """Whether what a scheduler did not say may be what it could not know yet."""
    asked = answer.asked or 0.0
    return asked < (story.submitted if answer.own else story.moved + APART)


def _word(job: SchedulerJob) -> str:
    return job.word + (f" ({job.reason})" if job.reason else "")


def read(run: Run) -> Story:
    """The story that the run's own record tells."""
    attempts = run.attempts()
    last = attempts[-1] if attempts else None
    if last is None:
        return tell(journal_events(run), None, ())
    events = last.latest_events()
    recorded = bool(every(events, Ended))
    return tell(journal_events(run), last.number, events, None if recorded else last.exit_code())


def look(run: Run, live: Live, known: tuple[JobPlan, Story] | None = None) -> Seen:
    """The run as it is now.

    Args:
        run: the run.
        live: asks its scheduler.
        known: its plan and story, if they have just been read.
    """
    plan, story = known or (run.plan(), read(run))
    while True:
        seen = _look(run, live, plan, story)
        if not seen.state.over or seen.state is RunState.DONE:
            return seen
        # Meanwhile it may have ended, or gone on: what it wrote last counts.
        before, story = story, read(run)
        if (before.job_id, before.attempt, before.ended) == (story.job_id, story.attempt, story.ended):
            return seen


def _look(run: Run, live: Live, plan: JobPlan, story: Story) -> Seen:
    if story.ended == 0:
        return Seen(run, plan, story, RunState.DONE, "", story.last(Progress))
    job, word, answered = live.job(run, plan, story)
    state = run_state(story, job, answered=answered)
    left, before, age = live.details(plan, story)
    asked = plan.cluster.scheduler if plan.queued and not answered else ""
    return Seen(run, plan, story, state, word, story.last(Progress), left, asked, before if asked else "", age)


def readable(run: Run, function: Callable[[], T]) -> T | Damaged:
    """What a function makes of a run's record; what is wrong with it, if it was cut off or changed."""
    try:
        return function()
    except RunError as error:
        return Damaged(run, str(error), is_transient(error))
    except DAMAGE as error:
        if is_transient(error):
            return Damaged(run, f"{run.path} cannot be read now: {error}", is_transient=True)
        return Damaged(run, f"{run.path} is damaged: {type(error).__name__}: {error}")


def look_at_each(runs: Iterable[Run], live: Live) -> list[Seen | Damaged]:
    """Many runs with one question to each scheduler, and one more for what it has forgotten; damaged ones as such."""
    known = [(run, readable(run, lambda run=run: (run.plan(), read(run)))) for run in runs]  # type: ignore[misc]
    whole = [each for _, each in known if not isinstance(each, Damaged) and each[1].ended != 0]
    with contextlib.suppress(*DAMAGE):  # of the job's id; looking at that run tells
        live.remember(whole)
    return [
        each if isinstance(each, Damaged) else readable(run, lambda run=run, each=each: look(run, live, each))  # type: ignore[misc]
        for run, each in known
    ]


def look_at_all(runs: Iterable[Run], *, strict: bool) -> list[Seen]:
    """Many runs with one question to the scheduler.

    Raises:
        RunError: one cannot be read, and `strict`; else it is left out.
    """
    seen: list[Seen] = []
    for each in look_at_each(runs, Live(share=True)):
        if isinstance(each, Seen):
            seen.append(each)
        elif strict:
            raise RunError(each.words)
    return seen


def cancelled() -> Cancelled:
    """What the journal is told when this process's user cancels a run."""
    return Cancelled(by=ownership.user_name(os.getuid()), host=socket.gethostname())
