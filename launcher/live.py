"""Runs as they are now: their records, and one question to each scheduler for all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher import errors
from launcher.backends.base import JobState, Queries, QueryError, SchedulerJob
from launcher.backends.pbs_query import PBS
from launcher.backends.processes import Process
from launcher.backends.slurm_query import Slurm
from launcher.config import Scheduler
from launcher.errors import RunError
from launcher.plan import JobPlan
from launcher.runs import Run
from launcher.state import RunState, Story, run_state, tell

SCHEDULER_INTERVAL = 2.0  # seconds for which a scheduler's answer is good enough


@dataclass(frozen=True)
class Seen:
    """One run as it is now.

    Attributes:
        word: the scheduler's own word, when it adds something (`PENDING (Resources)`).
        progress: the last progress event of rank 0.
    """

    run: Run
    plan: JobPlan
    story: Story
    state: RunState
    word: str
    progress: Mapping[str, Any] | None

    @property
    def exit_code(self) -> int:
        """What a command that waited for the run exits with."""
        if self.state is RunState.FAILED and self.story.ended == errors.NO_RETRY:
            return errors.NO_RETRY
        return self.state.exit_code


def queries(plan: JobPlan) -> Queries:
    """How the plan's scheduler is asked."""
    return (PBS if plan.scheduler == Scheduler.pbs.value else Slurm)(plan.submit_timeout)


class Live:
    """Asks schedulers, no more often than needed."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, dict[str, SchedulerJob] | str]] = {}

    def job(self, run: Run, plan: JobPlan, story: Story) -> tuple[JobState | None, str, bool]:
        """State of the run's job (None: no such job), the scheduler's word on it, and whether it answered."""
        if not plan.queued:
            process = Process.started(run.journal_events())
            if process is None:
                return None, "", True
            if not process.here():
                return JobState.UNKNOWN, f"it runs on {process.host}", False
            return (JobState.RUNNING, "", True) if process.alive() else (None, "", True)
        if story.job_id is None:
            return None, "", True
        scheduler, answer = queries(plan), self._ask(plan)
        if isinstance(answer, str):
            return None, answer, False
        job = answer.get(scheduler.key(story.job_id))
        # The run's own word on its end is enough, unless it was told to stop and only the scheduler knows why.
        open_end = story.ended is None or story.ended > 128
        if open_end and (job is None or job.state is JobState.GONE):
            try:
                job = self.ended(plan, story.job_id) or job
            except QueryError as error:
                return None, str(error), False
            if job is not None:
                answer[scheduler.key(story.job_id)] = job
        if job is None:
            return None, "", True
        return job.state, job.word + (f" ({job.reason})" if job.reason else ""), True

    def ended(self, plan: JobPlan, job_id: str) -> SchedulerJob | None:
        """What the plan's scheduler remembers of a job that is over.

        Raises:
            QueryError: it does not answer.
        """
        return queries(plan).ended(job_id)

    def _ask(self, plan: JobPlan) -> dict[str, SchedulerJob] | str:
        """All jobs that the plan's scheduler knows, or why it does not answer."""
        asked, answer = self._answers.get(plan.scheduler, (float("-inf"), ""))
        if time.monotonic() - asked > SCHEDULER_INTERVAL:
            try:
                answer = queries(plan).jobs()
            except QueryError as error:
                answer = str(error)
            # The time after the answer, which may have taken long.
            self._answers[plan.scheduler] = (time.monotonic(), answer)
        return answer

    def cancel(self, run: Run, *, kill: bool = False) -> None:
        """Asks the run's scheduler to end its job.

        Raises:
            RunError: it has no job, or it runs on another machine.
            QueryError: the scheduler does not answer.
        """
        plan, story = run.plan(), read(run)
        run.journal("cancelled")
        run.mark("cancelled")  # or it would go on in another attempt
        if not plan.queued:
            process = Process.started(run.journal_events())
            if process is not None and not process.here():
                raise RunError(f"{run.id} runs on {process.host}: cancel it there")
            if process is not None:
                process.signal(signal.SIGKILL if kill else signal.SIGTERM)
            return
        scheduler = queries(plan)
        job_id = story.job_id or scheduler.find(run.record()["token"], plan.name)
        if job_id is None:
            raise RunError(f"{run.id} has no job")
        for each in (job_id, *story.waiting):
            scheduler.cancel(each)


def read(run: Run) -> Story:
    """The story that the run's own record tells."""
    attempts = run.attempts()
    last = attempts[-1] if attempts else None
    return tell(run.journal_events(), last.number if last else None, last.events() if last else ())


def look(run: Run, live: Live) -> Seen:
    """The run as it is now."""
    story = read(run)
    while True:
        seen = _look(run, live, story)
        if not seen.state.over or seen.state is RunState.DONE:
            return seen
        # Meanwhile it may have ended, or gone on: what it wrote last counts.
        before, story = story, read(run)
        if (before.job_id, before.attempt, before.ended) == (story.job_id, story.attempt, story.ended):
            return seen


def _look(run: Run, live: Live, story: Story) -> Seen:
    plan, state, word = run.plan(), RunState.DONE, ""
    if story.ended != 0:
        job, word, answered = live.job(run, plan, story)
        state = run_state(story, job, answered=answered)
    return Seen(run, plan, story, state, word, story.last("progress"))


def look_at_all(runs: Iterable[Run], *, strict: bool) -> list[Seen]:
    """Many runs with one question to the scheduler.

    Raises:
        RunError: one cannot be read, and `strict`; else it is left out.
    """
    live, seen = Live(), []
    for run in runs:
        try:
            seen.append(look(run, live))
        except RunError:
            if strict:
                raise
    return seen
